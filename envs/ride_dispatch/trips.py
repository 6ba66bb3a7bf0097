"""Demand from a city's trip records, in files as New York's Taxi and Limousine Commission publishes them."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from marljax.envs.ride_dispatch.demand import GRAVITY_KM, MINUTES, Demand, Zones, manhattan_zones, of_shares, read_times
from marljax.errors import UserError, short_repr

# by the kind of taxi: yellow, green, others for hire; the first that a file has
COLUMNS = {
    "time of pickup": ("tpep_pickup_datetime", "lpep_pickup_datetime", "pickup_datetime"),
    "zone of pickup": ("PULocationID", "PUlocationID"),
    "zone of drop-off": ("DOLocationID", "DOlocationID"),
}
ELSEWHERE = ("refuse", "drop")
DAYS = ("all", "weekdays", "weekends")
RARE = 0.1  # of the busiest day's trips
PRIOR = 20.0  # trips that the gravity model is worth beside those counted from an origin
LARGEST_ZONE = 2**31 - 1
NAMED = 5  # zones named in a message


def demand_from_trips(
    path: str | Path, zones: str | Path | Zones | None = None, elsewhere: str = "refuse", days: str = "all"
) -> Demand:
    """Orders per minute of the day (mean over the file's days), shares of origins, and destinations by origin.

    Args:
        path: CSV or Parquet with a row for each trip: time of pickup, zones of pickup and drop-off, in columns named as New
            York's records of yellow, green or for-hire cars name them.
        zones: table of zones, or its CSV file with columns ``zone_id``, ``up_km``, ``cross_km``: places of centroids along the
            axes of the city's grid. Default: Manhattan's.
        elsewhere: what to do with trips whose zones the table does not have: ``refuse``, or ``drop`` them (New York's own files
            hold airports and other boroughs).
        days: ``all``, ``weekdays`` or ``weekends``. Days with less than a tenth of the busiest day's trips do not count:
            published files hold a few trips with a wrong date.

    Raises:
        UserError: for a file that cannot be read, lacks columns or holds no trip within the zones, and, unless they are to be
            dropped, for trips elsewhere.
    """
    for name, choice, choices in (("elsewhere", elsewhere, ELSEWHERE), ("days", days, DAYS)):
        if choice not in choices:
            raise UserError(f"{name}={choice!r} of demand_from_trips is not known; give {' or '.join(map(repr, choices))}")
    if not isinstance(path, str | Path):
        raise UserError(f"{short_repr(path)} is no path; give the name of a file of trips")
    table = zones_of(zones)
    time, origin, destination = _within(table, Path(path), _read(Path(path)), elsewhere)
    usual, number_of_days = _usual_days(time.astype("datetime64[D]"), days)
    if not number_of_days:
        raise UserError(f"{path} holds no trip on {days}; give days='all'")
    time, origin, destination = (column[usual] for column in (time, origin, destination))
    size = len(table.zone_id)
    counts = np.bincount(origin * size + destination, minlength=size * size).reshape(size, size)
    minute = (time.astype("datetime64[m]") - time.astype("datetime64[D]")).astype(int)
    rate = np.bincount(minute, minlength=MINUTES) / number_of_days
    # An origin with few trips, or none, goes where the others go, the nearer the sooner.
    popular = np.exp(-table.apart() / GRAVITY_KM) * (counts.sum(axis=0) + 1)
    flows = counts + PRIOR * popular / popular.sum(axis=1, keepdims=True)
    return of_shares(table.up, table.cross, counts.sum(axis=1) + 1e-9, flows, rate)


@functools.lru_cache(maxsize=8)
def of_files(trips_file: str, zones_file: str = "", elsewhere: str = "refuse", days: str = "all") -> Demand:
    """``demand_from_trips`` for the options of ``RideDispatch``; every file is read once in a process."""
    return demand_from_trips(trips_file, zones_file or None, elsewhere, days)


@functools.lru_cache(maxsize=8)
def times_of_file(times_file: str, zones_file: str = "") -> np.ndarray:
    """``read_times``, once in a process."""
    return read_times(times_file, zones_of(zones_file or None))


def zones_of(zones: str | Path | Zones | None) -> Zones:
    """A table of zones, or the one in a file, or Manhattan's."""
    if isinstance(zones, Zones):
        return zones
    return manhattan_zones() if zones is None else Zones.read(zones)


def _within(table: Zones, path: Path, trips: tuple[np.ndarray, ...], elsewhere: str) -> tuple[np.ndarray, ...]:
    """Time, origin and destination of the trips within the zones, which are named by their place in the table now."""
    time, origin, destination = trips
    number = {zone: place for place, zone in enumerate(table.zone_id.tolist())}
    ends = [np.array([number.get(zone, -1) for zone in column.tolist()]) for column in (origin, destination)]
    known = (ends[0] >= 0) & (ends[1] >= 0)
    if elsewhere == "refuse" and not known.all():
        strange = sorted({*origin[ends[0] < 0].tolist(), *destination[ends[1] < 0].tolist()})
        some = ", ".join(str(zone) for zone in strange[:NAMED]) + (", …" if len(strange) > NAMED else "")
        raise UserError(
            f"{(~known).sum()} of {len(known)} trips in {path} start or end in zones that the table does not have ({some}); "
            "give a table of zones that has them, or elsewhere='drop' to leave these trips out"
        )
    if not known.any():
        raise UserError(f"{path} holds no trip within the zones of the table; give a table of the city's own zones")
    return time[known], ends[0][known], ends[1][known]


def _usual_days(date: np.ndarray, days: str) -> tuple[np.ndarray, int]:
    """Which trips count, by their dates [trips], and on how many days they were."""
    found, place, trips = np.unique(date, return_inverse=True, return_counts=True)
    weekend = np.is_busday(found, weekmask="Sat Sun")
    counts = {"all": np.ones(len(found), bool), "weekdays": ~weekend, "weekends": weekend}[days]
    counts &= trips >= RARE * trips.max()
    return counts[place], int(counts.sum())


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Time, origin and destination of every trip that has all three."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise UserError("reading trips needs pandas; pip install 'marljax[trips]'") from error
    known = {name for names in COLUMNS.values() for name in names}
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    try:
        if path.suffix.lower() in (".parquet", ".pq"):
            from pyarrow import parquet

            columns = [name for name in parquet.read_schema(path).names if name in known]
            frame: Any = pandas.read_parquet(path, columns=columns)
        else:
            frame = pandas.read_csv(path, usecols=lambda name: name in known)
    except ImportError as error:
        raise UserError("reading Parquet needs pyarrow; pip install 'marljax[trips]'") from error
    except Exception as error:  # whatever a reader raises for bytes that it cannot make sense of
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise UserError(f"cannot read {path} as trips: {reason[0]}; give CSV or Parquet") from error
    chosen = []
    for what, names in COLUMNS.items():
        found = [name for name in names if name in frame.columns]
        if not found:
            raise UserError(f"{path} has no column with the {what} ({' or '.join(names)})")
        chosen.append(found[0])
    time = _wall_clock(frame[chosen[0]])
    ends = [pandas.to_numeric(frame[name], errors="coerce") for name in chosen[1:]]
    known_ends = [(end % 1 == 0) & (end.abs() <= LARGEST_ZONE) for end in ends]
    whole = time.notna() & known_ends[0] & known_ends[1]
    if not whole.any():
        raise UserError(f"{path} holds no trip with a time and two zones")
    return time[whole].to_numpy("datetime64[s]"), *(end[whole].to_numpy(np.int64) for end in ends)


def _wall_clock(column: Any) -> Any:
    """Times as the clocks of the place showed them: an offset such as -05:00 or Z is left out."""
    import pandas

    if isinstance(column.dtype, pandas.DatetimeTZDtype):
        return column.dt.tz_localize(None)
    if not pandas.api.types.is_datetime64_any_dtype(column):
        column = column.astype(str).str.replace(r"(:\d\d(\.\d+)?) ?(Z|[+-]\d\d:?\d\d)$", r"\1", regex=True)
    return pandas.to_datetime(column, errors="coerce", format="mixed")
