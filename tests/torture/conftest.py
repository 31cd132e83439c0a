"""`--hypothesis-profile=torture` tries many damaged files, drawn anew in each run."""

from hypothesis import HealthCheck, settings

settings.register_profile("torture", max_examples=20_000)


def some(examples: int) -> settings:
    """Settings for so many examples, which are the same in each run."""
    long = settings.get_current_profile_name() == "torture"
    return settings(
        max_examples=settings().max_examples if long else examples,
        derandomize=not long,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
