import time
from uuid import RFC_4122, UUID

from firstline_core.ids import new_request_id


def test_an_id_is_a_uuid_of_version_7() -> None:
    before_ms = time.time_ns() // 1_000_000
    minted = UUID(new_request_id())
    after_ms = time.time_ns() // 1_000_000
    assert minted.version == 7
    assert minted.variant == RFC_4122
    assert before_ms <= minted.int >> 80 <= after_ms


def test_ids_of_one_millisecond_share_only_the_time() -> None:
    ids = [UUID(new_request_id()).int for _ in range(1000)]
    assert len(set(ids)) == 1000
    varied = 0
    for value in ids:
        varied |= value ^ ids[0]
    # All 74 random bits vary, none is a counter's constant upper half.
    assert (varied & ((1 << 62) - 1)) == (1 << 62) - 1
    assert (varied >> 64) & 0xFFF == 0xFFF
