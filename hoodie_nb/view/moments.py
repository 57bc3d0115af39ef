"""Forms of a time that a user may give (`as_of`, `since`), as 17 digits."""

from datetime import UTC, date, datetime, time

from hoodie_nb.clock import instant_ms, instant_time
from hoodie_nb.definition.properties import TableConfig
from hoodie_nb.errors import InvalidConfig


def parse_time(moment: object, config: TableConfig) -> str:
    """Return the 17 digits, in the zone of the table's timeline, of a moment.

    Digits and the time of a commit or instant are those of the timeline already. ISO text, a date
    (its start) or a datetime without a zone is local time.
    """
    moment = getattr(moment, "requested_time", moment)
    try:
        if isinstance(moment, str) and moment.isdigit():
            return instant_time(instant_ms(moment))
        when = datetime.fromisoformat(moment) if isinstance(moment, str) else moment
        if isinstance(when, datetime) and str(when) != "NaT":  # pandas: not a time, but a datetime
            whole = datetime.combine(when.date(), when.timetz())  # pandas: naive is UTC there
            return _digits(whole, config)
        if isinstance(when, date) and not isinstance(when, datetime):
            return _digits(datetime.combine(when, time()), config)
    except (ValueError, OverflowError):
        pass
    raise InvalidConfig(
        f"{moment!r} is not a time: give 17 digits, ISO text, a date, a datetime or a commit"
    )


def _digits(when: datetime, config: TableConfig) -> str:
    there = when.astimezone(None if config.local_time else UTC)
    return f"{there.year:04}{there:%m%d%H%M%S}{there.microsecond // 1000:03}"
