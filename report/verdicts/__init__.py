"""Whether a cell agrees with the paper's, by tolerances set beforehand."""

from report.compute.likeness import Likeness
from report.verdicts.judge import Judgement, judge
from report.verdicts.setting import Setting, Settings, other_device
from report.verdicts.tolerances import Rule, load_rules, rule_for

__all__ = [
    "Judgement",
    "Likeness",
    "Rule",
    "Setting",
    "Settings",
    "judge",
    "load_rules",
    "other_device",
    "rule_for",
]
