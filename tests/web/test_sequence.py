"""The order of one session's frames: each number once, no gap unnoticed, whatever comes when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from deploy.web import sequence
from deploy.web.sequence import Sequence


def raw(number: int) -> bytes:
    return b"%d" % number


def sent(made: Sequence, *numbers: int, epoch: str = "e") -> list[int]:
    return [int(one) for number in numbers for one in made.take(epoch, number, raw(number))]


def at(seq: int | None, epoch: str | None = "e") -> Sequence:
    made = Sequence()
    made.again(epoch, seq)
    return made


def test_replayed_frames_go_on_at_once() -> None:
    made = at(2)
    assert sent(made, 3, 4, 4, 3, 5) == [3, 4, 5]
    assert made.acknowledged("e", 5) == []
    assert not made.broken


def test_one_that_comes_early_waits() -> None:
    made = at(2)
    assert sent(made, 5, 3) == [3]
    assert sent(made, 4) == [4, 5]
    assert made.acknowledged("e", 5) == []
    assert not made.broken


def test_what_the_replay_left_out_is_noticed() -> None:
    for numbers, stands in (((5,), 5), ((3,), 5), ((), 3)):
        made = at(2)
        sent(made, *numbers)
        made.acknowledged("e", stands)
        assert made.broken


def test_a_live_gap_is_noticed_and_nothing_goes_past_it() -> None:
    made = at(2)
    made.acknowledged("e", 2)
    assert sent(made, 4, 5) == []
    assert made.broken
    assert made.seq == 2


def test_another_epoch_is_noticed() -> None:
    made = at(2)
    made.acknowledged("e", 2)
    assert sent(made, 3, epoch="other") == []
    assert made.broken
    made = at(2)
    made.acknowledged("other", 2)
    assert made.broken


def test_an_epoch_is_learned_where_none_was_known() -> None:
    made = at(0, None)
    assert sent(made, 1) == [1]
    assert made.epoch == "e"


def test_nothing_goes_on_before_a_snapshot_where_nothing_is_known() -> None:
    made = at(None, None)
    assert sent(made, 7, 8, 9) == []
    assert made.acknowledged("e", 9) == []
    assert made.start("e", 7) == [b"8", b"9"]
    assert sent(made, 10) == [10]


def test_frames_wait_for_a_snapshot_that_was_asked_for() -> None:
    made = at(2)
    made.acknowledged("e", 2)
    made.pause()
    assert sent(made, 3, 4) == []
    assert made.start("e", 3) == [b"4"]
    made.pause()
    assert sent(made, 5) == []
    assert made.resume() == [b"5"]


def test_a_snapshot_never_goes_back() -> None:
    made = at(2)
    sent(made, 3, 4)
    made.pause()
    assert made.start("e", 3) == []
    assert made.seq == 4


def test_a_snapshot_of_another_epoch_drops_the_old_one() -> None:
    made = at(2)
    made.pause()
    sent(made, 3)
    made.take("new", 1, b"1")
    assert made.start("new", 0) == [b"1"]
    assert (made.epoch, made.seq) == ("new", 1)


def test_what_is_held_is_bounded() -> None:
    made = at(None)
    sent(made, *range(sequence.HELD_FRAMES + 5))
    assert made.broken
    made = at(None)
    made.take("e", 1, bytes(sequence.HELD_BYTES + 1))
    assert made.broken


def test_halted_it_takes_nothing_until_it_is_asked_for_again() -> None:
    made = at(2)
    made.halt()
    assert sent(made, 3, 4) == []
    made.again("e", 2)
    assert sent(made, 3) == [3]


@given(st.lists(st.integers(1, 12), max_size=60), st.integers(0, 3))
def test_whatever_comes_goes_on_in_order_and_once(numbers: list[int], start: int) -> None:
    made = at(start)
    out = sent(made, *numbers)
    out += [int(one) for one in made.acknowledged("e", 12)]
    assert out == list(range(start + 1, start + 1 + len(out)))
    assert made.seq == start + len(out)
    assert made.broken == (made.seq != 12)
