"""What was recorded, in other forms: for spreadsheets, viewers, databases and data frames.

``python -m tensorprobe.export --help`` (or ``tensorprobe export``) says what there is. The
functions are those that users of the msprobe Monitor call in their scripts. Needs no torch.
"""

from tensorprobe.export.database import data2db
from tensorprobe.export.events import csv2tensorboard_by_step
from tensorprobe.export.formats import FORMATS, export

__all__ = ["FORMATS", "csv2tensorboard_by_step", "data2db", "export"]
