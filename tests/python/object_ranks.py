"""A rank that sends an object of a class of its own. hostile_test.py runs it."""

import recon.hvd as hvd


class Own:
    def __init__(self, value: int) -> None:
        self.value = value


def main() -> None:
    import object_ranks  # By this name others find the class.

    hvd.init()
    got = hvd.broadcast_object({"own": object_ranks.Own(hvd.rank() + 5)}, 0)
    assert got["own"].value == 5
    assert [one.value for one in hvd.allgather_object(object_ranks.Own(hvd.rank()))] == [0, 1]


if __name__ == "__main__":
    main()
