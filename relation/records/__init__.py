"""A campaign's Parquet as tidy frames: what the report is computed from."""

from relation.records.campaign import CampaignRecords, load_records
from relation.records.efficiency import Crossing, smoothed_loss, token_crossing

__all__ = ["CampaignRecords", "Crossing", "load_records", "smoothed_loss", "token_crossing"]
