"""Many walks of a state machine through one world: short ones, always the same, or long ones."""

from collections.abc import Callable

import hypothesis
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from support.shapes import Scale


def walk(
    machine: Callable[[], RuleBasedStateMachine], scale: Scale, *, many: int, steps: int
) -> None:
    """As often as the profile says, or `many` times in `make faults`."""
    profile = hypothesis.settings()
    run_state_machine_as_test(
        machine,  # type: ignore[arg-type]  # it is only called
        settings=hypothesis.settings(
            profile,
            max_examples=scale(profile.max_examples, many),
            derandomize=scale(profile.derandomize, False),
            stateful_step_count=steps,
            # Each try at an explanation costs a walk, and the walk itself explains enough.
            phases=set(hypothesis.Phase) - {hypothesis.Phase.explain},
            suppress_health_check=list(hypothesis.HealthCheck),
        ),
    )
