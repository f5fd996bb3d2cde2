"""Where a record comes from: the origin that is written into it, and the stamp that a job is given.

The pipeline makes the stamp (`relation.pipeline.origin`), as it alone knows the code hash.
"""

import platform
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from relation.registry import tells


@dataclass(frozen=True)
class Stamp:
    """What makes a job's records: code, commit and versions of packages.

    code_hash: of the code that the job rests on; golden_hash: of the golden losses that this code
    is held to, None where they are not there.
    """

    code_hash: str = "unknown"
    golden_hash: str | None = None
    commit: str = "unknown"
    versions: Mapping[str, str] = field(default_factory=dict)


UNKNOWN = Stamp()  # of a job that the pipeline did not start


@tells
def origin(
    campaign: str,
    config_hash: str,
    stage: str,
    device: str,
    stamp: Stamp = UNKNOWN,
    **details: Any,
) -> dict[str, Any]:
    """The metadata written into a record; `details` add seed, order hash and the like."""
    return {
        "campaign": campaign,
        "config_hash": config_hash,
        "stage": stage,
        **asdict(stamp),
        "device": device,
        "host_machine": platform.machine(),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        **details,
    }
