"""The ledger: what the paper asserts, held against a campaign by fixed rules."""

from report.judge.claims.ledger import CLAIMS, Claim, Judged, judge_claims

__all__ = ["CLAIMS", "Claim", "Judged", "judge_claims"]
