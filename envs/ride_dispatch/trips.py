"""Demand from a city's trip records, in files as New York's Taxi and Limousine Commission publishes them."""

import functools
from pathlib import Path
from typing import Any

import numpy as np

from marljax.envs.ride_dispatch.demand import GRAVITY_KM, MINUTES, Demand, Zones, demand_from_shares, manhattan_zones, read_times
from marljax.errors import UserError, first_line, short_repr

# Names in the records of yellow taxis, green taxis and other cars for hire; the first one in a file is used.
COLUMNS = {
    "time of pickup": ("tpep_pickup_datetime", "lpep_pickup_datetime", "pickup_datetime"),
    "zone of pickup": ("PULocationID", "PUlocationID"),
    "zone of drop-off": ("DOLocationID", "DOlocationID"),
}
ELSEWHERE = ("refuse", "drop")
DAYS = ("all", "weekdays", "weekends")
RARE = 0.1  # of the busiest day's trips
PRIOR = 20.0  # weight of the gravity model in trips per origin, relative to counted trips
LARGEST_ZONE = 2**31 - 1
NAMED = 5  # zones named in a message
INSTALL = "pip install 'marljax[trips]'"


def demand_from_trips(
    path: str | Path, zones: str | Path | Zones | None = None, elsewhere: str = "refuse", days: str = "all"
) -> Demand:
    """Orders per minute of the day (mean over the file's days), shares of origins, and destinations by origin.

    Args:
        path: CSV or Parquet file with a row for each trip: time of pickup, zones of pickup and drop-off, in columns named as in
            New York's records of yellow, green or for-hire cars.
        zones: table of zones, or its CSV file with columns ``zone_id``, ``up_km``, ``cross_km``: centroids along the axes of the
            city's grid. Default: Manhattan's.
        elsewhere: ``refuse`` or ``drop`` trips whose zones are not in the table (New York's own files include airports and other
            boroughs).
        days: ``all``, ``weekdays`` or ``weekends``. Days with less than a tenth of the busiest day's trips are ignored:
            published files include a few trips with a wrong date.

    Raises:
        UserError: for a file that cannot be read, lacks columns or has no trip within the zones, and, unless they are to be
            dropped, for trips elsewhere.
    """
    for name, choice, choices in (("elsewhere", elsewhere, ELSEWHERE), ("days", days, DAYS)):
        if choice not in choices:
            raise UserError(f"{name}={choice!r} is not available; choose {' or '.join(map(repr, choices))}")
    if not isinstance(path, str | Path):
        raise UserError(f"{short_repr(path)} is not a path; give the name of a file of trips")
    table = zones if isinstance(zones, Zones) else Zones.read(zones) if zones else manhattan_zones()
    time, *ends = _read(Path(path))
    index = {zone: position for position, zone in enumerate(table.zone_id.tolist())}
    origin, destination = (np.array([index.get(zone, -1) for zone in end.tolist()]) for end in ends)
    known = (origin >= 0) & (destination >= 0)
    if elsewhere == "refuse" and not known.all():
        unknown = sorted({*ends[0][origin < 0].tolist(), *ends[1][destination < 0].tolist()})
        some = ", ".join(map(str, unknown[:NAMED])) + (", …" if len(unknown) > NAMED else "")
        raise UserError(
            f"{(~known).sum()} of {len(known)} trips in {path} start or end in zones that are not in the table ({some}); "
            "give a table with these zones, or elsewhere='drop' to ignore these trips"
        )
    if not known.any():
        raise UserError(f"{path} has no trip within the zones of the table; give a table of the city's own zones")
    time, origin, destination = time[known], origin[known], destination[known]

    dates, date, trips = np.unique(time.astype("datetime64[D]"), return_inverse=True, return_counts=True)
    weekend = np.is_busday(dates, weekmask="Sat Sun")
    used = {"all": np.ones(len(dates), bool), "weekdays": ~weekend, "weekends": weekend}[days] & (trips >= RARE * trips.max())
    if not used.any():
        raise UserError(f"{path} has no trip on {days}; give days='all'")
    time, origin, destination = (column[used[date]] for column in (time, origin, destination))
    minute = (time.astype("datetime64[m]") - time.astype("datetime64[D]")).astype(int)
    rate = np.bincount(minute, minlength=MINUTES) / int(used.sum())
    size = len(table.zone_id)
    counts = np.bincount(origin * size + destination, minlength=size * size).reshape(size, size)
    # Destinations of an origin with few trips follow the gravity model.
    popular = np.exp(-table.distances() / GRAVITY_KM) * (counts.sum(axis=0) + 1)
    flows = counts + PRIOR * popular / popular.sum(axis=1, keepdims=True)
    return demand_from_shares(table.up, table.cross, counts.sum(axis=1) + 1e-9, flows, rate)


@functools.lru_cache(maxsize=8)
def cached_demand(trips_file: str, zones_file: str = "", elsewhere: str = "refuse", days: str = "all") -> Demand:
    """``demand_from_trips`` for the options of ``RideDispatch``."""
    return demand_from_trips(trips_file, zones_file or None, elsewhere, days)


@functools.lru_cache(maxsize=8)
def cached_times(times_file: str, zones_file: str = "") -> np.ndarray:
    """``read_times`` for the options of ``RideDispatch``."""
    return read_times(times_file, Zones.read(zones_file) if zones_file else None)


def _read(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Time, origin and destination of every trip that has all three. Times are local: UTC offsets are ignored."""
    try:
        import pandas
    except ModuleNotFoundError as error:
        raise UserError(f"reading trips needs pandas; {INSTALL}") from error
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
        raise UserError(f"reading Parquet needs pyarrow; {INSTALL}") from error
    except Exception as error:  # readers raise all kinds of errors for malformed files
        raise UserError(f"cannot read {path} as trips: {first_line(error)}; give CSV or Parquet") from error
    found = {meaning: [name for name in names if name in frame.columns] for meaning, names in COLUMNS.items()}
    for meaning, names in found.items():
        if not names:
            raise UserError(f"{path} has no column with the {meaning} ({' or '.join(COLUMNS[meaning])})")
    time, *ends = (frame[names[0]] for names in found.values())
    if isinstance(time.dtype, pandas.DatetimeTZDtype):
        time = time.dt.tz_localize(None)
    elif not pandas.api.types.is_datetime64_any_dtype(time):
        time = time.astype(str).str.replace(r"(:\d\d(\.\d+)?) ?(Z|[+-]\d\d:?\d\d)$", r"\1", regex=True)
    time = pandas.to_datetime(time, errors="coerce", format="mixed")
    ends = [pandas.to_numeric(end, errors="coerce") for end in ends]
    whole = time.notna()
    for end in ends:
        whole &= (end % 1 == 0) & (end.abs() <= LARGEST_ZONE)
    if not whole.any():
        raise UserError(f"{path} has no trip with a time and two zones")
    return time[whole].to_numpy("datetime64[s]"), *(end[whole].to_numpy(np.int64) for end in ends)
