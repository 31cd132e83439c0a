"""What the tests of `mutants` plant faults in."""


def clipped(value: int, most: int) -> int:
    if value > most:
        return most
    return value
