import unittest

from cart import Cart


class CartTest(unittest.TestCase):
    def test_an_empty_cart_costs_nothing(self) -> None:
        self.assertEqual(Cart().total(), 0)

    def test_the_total_counts_every_piece(self) -> None:
        cart = Cart()
        cart.add("apple", price=50, quantity=3)
        cart.add("bread", price=320)
        self.assertEqual(cart.total(), 470)


if __name__ == "__main__":
    unittest.main()
