"""The measurements that executors report: what is added while threads count."""

from firstline_core.telemetry.statistics import OverheadTimes


def test_times_are_added_while_a_thread_counts_more() -> None:
    counting, total = OverheadTimes(), OverheadTimes()

    class Rows(int):
        """A number of rows; another thread counts a batch each time that it is looked up."""

        def __hash__(self) -> int:
            counting.batches_s[-len(counting.batches_s)] = (0.0, 0.0)
            return int(self)

    counting.add(1, Rows(3), 0.25, 0.5)
    total.include(counting)
    assert (total.input_s, total.output_s, total.batches_s[3]) == (0.25, 0.5, (0.25, 0.5))
