"""Refuses a table whose instants are in both layouts' folders (an interrupted upgrade).

Hudi's upgrade (6 to 8 or 9) and downgrade move one instant after the other, oldest first, and
change the properties at the end. In between, the properties name a folder that lacks instants:
readers would miss their rows, and a write would replace them permanently.

*Source:* UpgradeDowngrade.run, SevenToEightUpgradeHandler, EightToSevenDowngradeHandler.
"""

from hoodie_nb.errors import InvalidTable
from hoodie_nb.storage.storage import Storage
from hoodie_nb.timeline.instant import LAYOUT_1, LAYOUT_2, Layout


def refuse_split_timeline(storage: Storage, layout: Layout) -> None:
    """Raise InvalidTable if the folder of the other layout has an instant; it may be empty."""
    other = LAYOUT_2 if layout.number == 1 else LAYOUT_1
    found = next(filter(other.parse, storage.file_names(other.folder)), None)
    if found is not None:
        raise InvalidTable(
            f"{storage.root} has instants in {layout.folder}, as its properties say, and in "
            f"{other.folder} ({found}): another engine's upgrade or downgrade of the table was "
            "interrupted, or is running. Let that engine finish it"
        )
