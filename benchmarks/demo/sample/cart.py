"""A shopping cart."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Item:
    """A product in the cart; prices are in cents."""

    name: str
    price: int
    quantity: int = 1


@dataclass
class Cart:
    """Items in the order in which they were added."""

    items: list[Item] = field(default_factory=list)

    def add(self, name: str, price: int, quantity: int = 1) -> None:
        """Put `quantity` pieces of a product into the cart."""
        self.items.append(Item(name, price, quantity))

    def total(self) -> int:
        """What the whole cart costs, in cents."""
        return sum(item.price for item in self.items)
