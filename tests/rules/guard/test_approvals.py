from mendgraph.nodes.guard.approval_formats import ShownPreview
from mendgraph.nodes.guard.approvals import NO_PREVIEW, Preview, digest_of
from mendgraph.nodes.records import ToolCall

ARGUMENTS = {"path": "./a.py", "old_str": "a", "new_str": "b"}
CALL = ToolCall(call_id="1", tool="edit_file", arguments=ARGUMENTS, raw_arguments="")
DIFF = ShownPreview(kind="diff", text="-a\n+b", truncated=False)
SHOWN = Preview(DIFF, ("a.py",), (("a.py", "0" * 64, "mark"),))


def test_digest_depends_on_arguments_file_and_diff() -> None:
    other = CALL.model_copy(update={"arguments": {**ARGUMENTS, "new_str": "c"}})
    changed = SHOWN._replace(pins=(("a.py", "1" * 64, "mark"),))
    digests = [digest_of(CALL, SHOWN), digest_of(other, SHOWN), digest_of(CALL, changed), digest_of(CALL, NO_PREVIEW)]
    assert len(set(digests)) == 4
    assert digest_of(CALL, SHOWN) == digests[0]
