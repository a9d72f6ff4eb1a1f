"""Lists of actions as text: what is read, what is refused and why."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schedopt import InputError
from schedopt.actions import (
    ACTION_KINDS,
    Action,
    Part,
    Share,
    make_actions,
    parse_action,
    parse_actions,
)
from schedopt.actions.validation import find_order
from tests.actions.interpreters import ONE_GPU_EACH, assert_circle, in_order, run
from tests.budgets import trials
from tests.examples import EXAMPLES


@st.composite
def any_action(draw: st.DrawFn) -> Action:
    """Return any action that has a text."""
    small, kind = st.integers(0, 9999999), draw(st.sampled_from(ACTION_KINDS))
    part = version = share = None
    readers = ("F", "B", "I", "W", "R")
    if kind == "REDUCE_GRAD" or kind.endswith(("_G", "_V", "_P")):
        chunks = draw(st.integers(1, 9999999))
        chunk, is_added = draw(st.integers(0, chunks - 1)), draw(st.booleans())
        is_gradient, ends = kind.endswith("G") or kind == "REDUCE_GRAD", (draw(small), draw(small))
        is_taken = draw(st.booleans()) and is_gradient
        part = Part(*ends, chunk, chunks, is_added and is_gradient, is_taken)
    stage = draw(small)
    if kind == "ADD_COPY" or kind.endswith("_C"):
        other = draw(small.filter(lambda other: other != stage))
        part = Part(draw(small), draw(small), other_stage=other)
    if kind in readers:
        version = draw(st.none() | small)
    if part is not None and kind.endswith("_P"):
        version, part = (
            draw(small),
            replace(part, is_added=False, reader=draw(st.sampled_from(readers))),
        )
    if kind == "U" and draw(st.booleans()):
        of = draw(st.integers(2, 20))
        share = Share(
            tuple(sorted(draw(st.sets(st.integers(0, of - 1), min_size=1, max_size=of - 1)))), of
        )
    alone = part or kind in ("U", "BROADCAST_PARAM")
    count = 1 if alone else draw(st.integers(1, 2**19))
    return Action(stage, kind, draw(st.integers(0, 2**19)), count, version, part, share)


@given(any_action())
def test_actions_survive_their_text(action: Action) -> None:
    assert parse_action(str(action)) == action
    assert parse_action(f" {action} ") == action
    if action.is_transfer:
        assert action.other_end.other_end == action


@trials(200)
@given(
    st.text("0123456789FBIWRUGVPSENDCVrsc/+_v-, \n\u0663\u00b2", max_size=12) | st.text(max_size=8)
)
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        actions = parse_actions(text)
    except InputError:
        return
    assert parse_actions(str(actions)) == actions


GOOD = (
    "0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0U0\n"
    "1RECV_F0,1F0,1RECV_F1,1R0,1I0,1SEND_B0,1F1,1W0,1R1,1I1,1SEND_B1,1W1,1U0\n"
)
BROKEN = [
    ("0F1,0SEND_F1", "0F1", "rank 1: 1RECV_F1 has no other end 0SEND_F1"),
    ("0F1,0SEND_F1,", "", "rank 0: 0B1 comes before 0F1"),
    ("0SEND_F0", "0SEND_F0-1", "0SEND_F0-1 comes before 0F1"),
    ("1F0,", "", "rank 1: 1R0 comes before 1F0"),
    ("1RECV_F0,1F0", "1F0,1RECV_F0", "rank 1: 1F0 comes before 1RECV_F0 or 0F0"),
    ("1W0,1R1", "1R1,1W0,1W0", "rank 1: 1W0 is there twice"),
    ("1R0,1I0", "1I0,1R0", "rank 1: 1I0 comes before 1R0"),
    ("1I0,1SEND_B0", "1SEND_B0,1I0", "rank 1: 1SEND_B0 comes before 1B0 or 1I0"),
    ("1I1,1SEND_B1,1W1", "1W1,1I1,1SEND_B1", "rank 1: 1W1 comes before 1I1"),
    ("0RECV_B1,0B1", "0B1,0RECV_B1", "rank 0: 0B1 comes before 0RECV_B1 or 1B1 or 1I1"),
    ("0B1,0U0", "0U0,0B1", "rank 0: 0U0 comes before 0B1 or 0W1"),
    (",0U0", "", "stage 0 has 0 updates"),
    ("0U0", "0U0,0U1", "stage 1 has 1 updates"),
    ("0U0", "0U1", "rank 0: 0U1 comes before 0U0"),
    ("0F1", "0F1v1", "rank 0: 0F1v1 comes before 0U0"),
    (",1W1", "", "rank 1: 1U0 comes before 1B1 or 1W1"),
    ("1W1,1U0", "1B1,1U0", "rank 1: 1B1 is there in addition to its halves"),
    ("1W1", "1W1,0B1", "rank 1: 0B1 is there, and 0F1 on rank 0"),
    ("1W1", "1W1,0R1", "rank 1: 0R1 is there, and 0F1 on rank 0"),
    ("0U0", "0SEND_G0,0U0", "rank 0: '0SEND_G0' goes between replicas, or does not"),
    ("0U0", "0U0r0-1", "rank 0: '0U0r0-1' goes between replicas, or does not"),
    ("0U0", "0SEND_V0r0-1+,0U0", "'0SEND_V0r0-1+' goes between replicas, or does not"),
    ("0U0", "0G0r0-1c2/2,0U0", "rank 0: '0G0r0-1c2/2' is not a chunk"),
    ("0U0", "0G0r0-1c0/1,0U0", "rank 0: '0G0r0-1c0/1' is not a chunk"),
    ("0U0", "0SEND_G0-1r0-1,0U0", "rank 0: '0SEND_G0-1r0-1' covers no micro-batches"),
    ("0U0", "0SEND_G0v1r0-1,0U0", "rank 0: '0SEND_G0v1r0-1' reads no weights"),
    ("0U0", "0SEND_G0r0-0,0RECV_G0r0-0,0G0r0-0,0U0", "0SEND_G0r0-0 is sent to its own rank"),
    ("0U0", "0SEND_G0r1-0,0U0", "rank 0: 0SEND_G0r1-0 is there, and not on rank 1"),
    ("0U0", "0SEND_G0r0-1,0U0", "0SEND_G0r0-1 has no other end 0RECV_G0r0-1"),
    ("0U0", "0SEND_V0r0-1,0U0", "rank 0: 0SEND_V0r0-1 has no other end 0RECV_V0r0-1"),
    ("0SEND_F0", "0SEND_B0,0SEND_F0", "rank 0: 0SEND_B0 comes before 0B0"),
    ("0F0,", "0RECV_F0,0F0,", "rank 0: 0RECV_F0 is of the first stage"),
    ("1W1", "1W1,1SEND_F1", "rank 1: 1SEND_F1 has no other end 2RECV_F1"),
    ("1I0", "1 I0", "rank 1: '1 I0' is not an action"),
    ("1I0", "1I\u0660", "rank 1: '1I\u0660' is not an action"),
    ("1I0", "1I0000000000", "rank 1: '1I0000000000' is not an action"),
    ("1I0", "1I9999999", "rank 1: '1I9999999' is of micro-batch 9999999"),
    ("1I0", "1I1-0", "rank 1: '1I1-0' covers no micro-batches"),
    ("0U0", "0U0-1", "rank 0: '0U0-1' covers no micro-batches"),
    ("0U0", "0U0v1", "rank 0: '0U0v1' reads no weights"),
    ("0SEND_F0", "0SEND_F0v1", "rank 0: '0SEND_F0v1' reads no weights"),
    ("0F1,", "0F1,,", "rank 0: '' is not an action"),
    ("\n1", "\n\n1", "rank 1: '' is not an action"),
    (GOOD, "", "there are no actions"),
]


REPLICAS = (
    "0F0v0,0B0v0,0SEND_G0r0-1+,0RECV_G0r1-0+,0G0r1-0+,0U0\n"
    "0F1v0,0B1v0,0RECV_G0r0-1+,0SEND_G0r1-0+,0G0r0-1+,0U0\n"
)
BROKEN_REPLICAS = [
    ("0G0r1-0+,", "", "rank 0: 0U0 lacks micro-batch 1"),
    ("0G0r1-0+,0U0", "0U0,0G0r1-0+", "rank 0: 0U0 lacks micro-batch 1"),
    ("0G0r1-0+", "0G0r1-0+,0G0r1-0+", "rank 0: 0G0r1-0+ comes before 0RECV_G0r1-0+"),
    ("0RECV_G0r1-0+,0G0r1-0+", "0G0r1-0+,0RECV_G0r1-0+", "comes before 0RECV_G0r1-0+"),
    ("0B0v0,0SEND_G0r0-1+", "0SEND_G0r0-1+,0B0v0", "0SEND_G0r0-1+ has nothing of mini-batch 0"),
    ("0SEND_G0r0-1+", "0SEND_G0r0-1", "has no other end 0RECV_G0r0-1 on any rank"),
    ("0SEND_G0r0-1+", "0SEND_G0r0-1c0/2+", "has no other end 0RECV_G0r0-1c0/2+"),
    ("0RECV_G0r1-0+,0G0r1-0+,", "", "0SEND_G0r1-0+ has no other end"),
    ("0B1v0", "0B0v0", "rank 1: 0B0v0 is there, and 0F0 on rank 0"),
    ("0F1v0,", "", "0B1v0 comes before 0F1"),
    ("0U0\n", "0V0\n", "0V0 comes before chunk 0 of the weights"),
    (",0U0\n", "\n", "stage 0 has 0 updates"),
]


@pytest.mark.parametrize(
    ("good", "old", "new", "message"),
    [(GOOD, *case) for case in BROKEN] + [(REPLICAS, *case) for case in BROKEN_REPLICAS],
)
def test_lists_broken_by_hand(good: str, old: str, new: str, message: str) -> None:
    assert str(parse_actions(good)) == good
    assert old in good
    with pytest.raises(InputError) as error:
        parse_actions(good.replace(old, new, 1))
    assert message in str(error.value)


def test_a_circle_names_its_actions() -> None:
    """Stage 1 sends a gradient before it receives, stage 0 the other way round."""
    with pytest.raises(InputError) as error:
        parse_actions(GOOD.replace("1RECV_F1,1R0,1I0,1SEND_B0", "1R0,1I0,1SEND_B0,1RECV_F1"))
    told = str(error.value)
    assert "0RECV_B0 waits for 0SEND_F1 on rank 0" in told
    assert "1RECV_F1 waits for 1SEND_B0 on rank 1" in told


@trials(400)
@given(st.sampled_from(ONE_GPU_EACH), st.data())
def test_what_is_accepted_runs_and_what_is_refused_does_not(name: str, data: st.DataObject) -> None:
    lists = [list(actions) for actions in make_actions(EXAMPLES[name](), 4).ranks]
    for _ in range(data.draw(st.integers(1, 4))):
        actions = data.draw(st.sampled_from(lists))
        moved = [n for n, action in enumerate(actions) if action.is_transfer]
        place = data.draw(st.sampled_from(moved) | st.integers(0, len(actions) - 1))
        target = place + data.draw(st.integers(-5, 5))
        actions.insert(max(0, target), actions.pop(place))
    try:
        order = find_order(lists)
    except InputError as error:
        assert not (in_order(lists) and run(lists))
        if in_order(lists):
            assert_circle(lists, str(error))
        return
    assert in_order(lists)
    assert run(lists)
    assert run(lists, buffered=True)
    assert [[a for r, a in order if r == rank] for rank in range(len(lists))] == lists
