"""Whether a cell agrees with the paper's, by tolerances set beforehand."""

from report.verdicts.judge import Judgement, Setting, judge
from report.verdicts.tolerances import Rule, load_rules, rule_for

__all__ = ["Judgement", "Rule", "Setting", "judge", "load_rules", "rule_for"]
