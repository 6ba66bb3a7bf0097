"""Demand from trip records, in the column format of New York's Taxi and Limousine Commission."""

import jax
import numpy as np
import pytest

from marljax.config import compose
from marljax.envs.ride_dispatch import RideDispatch, demand_from_trips
from marljax.envs.ride_dispatch.demand import Zones, manhattan_zones
from marljax.errors import UserError

pandas = pytest.importorskip("pandas")
ZONES = manhattan_zones().zone_id


def records(**columns):
    """Two days of yellow taxis: 3,000 trips in the hour of 8, 1,000 in that of 20, all between zones 4 and 12."""
    draw, count = np.random.default_rng(0), 4_000
    hour, minute = np.where(np.arange(count) < 3_000, 8, 20), draw.integers(0, 60, count)
    day = np.where(draw.random(count) < 0.5, 2, 3)
    day[:2] = 2, 3
    start = draw.random(count) < 0.8
    trips = {
        "VendorID": np.ones(count, int),
        "tpep_pickup_datetime": [f"2024-01-{d:02d} {h:02d}:{m:02d}:07" for d, h, m in zip(day, hour, minute, strict=True)],
        "tpep_dropoff_datetime": "2024-01-02 09:00:00",
        "passenger_count": 1.0,
        "trip_distance": 1.7,
        "PULocationID": np.where(start, ZONES[0], ZONES[1]),
        "DOLocationID": np.where(start, ZONES[1], ZONES[0]),
    }
    return pandas.DataFrame(trips | columns)


def written(tmp_path, frame, kind="csv"):
    path = tmp_path / f"yellow_tripdata_2024-01.{kind}"
    if kind == "csv":
        frame.to_csv(path, index=False)
    else:
        times = {name: pandas.to_datetime(frame[name]) for name in frame if name.endswith("datetime")}
        frame.assign(**times).to_parquet(path)
    return path


@pytest.mark.parametrize("kind", ["csv", "parquet"])
def test_rates_shares_and_destinations_are_those_of_the_records(tmp_path, kind):
    demand = demand_from_trips(written(tmp_path, records(), kind))
    assert demand.rate[8 * 60 : 9 * 60].sum() == pytest.approx(1_500)
    assert demand.rate[20 * 60 : 21 * 60].sum() == pytest.approx(500)
    assert demand.rate.sum() == pytest.approx(2_000)
    shares = np.diff(demand.origin, prepend=0.0)
    assert shares[:2] == pytest.approx([0.8, 0.2], abs=0.02)
    there = np.diff(demand.destination, prepend=0.0, axis=1)
    assert there[0, 1] > 0.98
    assert there[1, 0] > 0.95
    assert there[5, :2].sum() > 0.75  # without trips: by the gravity model
    env = RideDispatch("demo")
    env.check_params(env.default_params.replace(demand=demand))


def test_another_citys_zones(tmp_path):
    table = tmp_path / "zones.csv"
    rows = "zone_id,name,up_km,cross_km\n7,harbour,0.0,0.0\n9,airport,12.0,3.5\n"
    table.write_text(rows, encoding="utf-8-sig")  # a byte order mark is ignored
    frame = records(PULocationID=7, DOLocationID=9).rename(columns={"tpep_pickup_datetime": "pickup_datetime"})
    demand = demand_from_trips(written(tmp_path, frame), zones=table)
    assert demand.num_zones == 2
    assert demand.up.tolist() == [0.0, 12.0]
    assert np.diff(demand.origin, prepend=0.0)[0] == pytest.approx(1.0)


def test_trips_elsewhere_are_refused_or_dropped(tmp_path):
    path = written(tmp_path, records(DOLocationID=np.where(np.arange(4_000) % 4, ZONES[1], 265)))
    with pytest.raises(UserError, match=r"1000 of 4000 trips.*\(265\)"):
        demand_from_trips(path)
    assert demand_from_trips(path, elsewhere="drop").rate.sum() == pytest.approx(1_500)
    with pytest.raises(UserError, match="elsewhere='keep'"):
        demand_from_trips(path, elsewhere="keep")


HEADER = b"tpep_pickup_datetime,PULocationID,DOLocationID\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "give CSV or Parquet"),
        (b"\x00\xff\xfe\x80PK", "cannot read|has no column"),
        (b"tpep_pickup_datetime,PULocationID\n2024-01-01 00:00:00,4\n", "DOLocationID"),
        (HEADER + b"never,4,12\n", "no trip"),
        (HEADER + b"2024-01-01 00:00:00,1,2\n", "1 of 1 trips"),
    ],
)
def test_invalid_files_of_trips_are_one_line(tmp_path, content, message):
    path = tmp_path / "trips.csv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=message) as error:
        demand_from_trips(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no zones"),
        ("zone_id,up_km,cross_km\n1,x,2\n", "cannot read"),
        ("zone_id,up_km,cross_km\n1,2,3\n01,2,3\n", "zone 1 more than once"),
        ("zone_id,up_km,cross_km\n1,2,nan\n", "cross_km of zone 1"),
    ],
)
def test_invalid_tables_of_zones_are_one_line(tmp_path, text, message):
    (tmp_path / "zones.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        Zones.read(tmp_path / "zones.csv")


def test_times_are_local(tmp_path):
    frame = records()
    for first, written_as in enumerate(("-05:00", "Z", "+0200", ".250Z")):
        frame.loc[first::5, "tpep_pickup_datetime"] += written_as
    rate = demand_from_trips(written(tmp_path, frame)).rate
    assert rate[8 * 60 : 9 * 60].sum() == pytest.approx(1_500)


def test_trips_without_integer_zones_are_ignored(tmp_path):
    place = np.where(np.arange(4_000) < 1_000, 4.5, np.where(np.arange(4_000) < 2_000, 1e30, float(ZONES[0])))
    assert demand_from_trips(written(tmp_path, records(PULocationID=place))).rate.sum() == pytest.approx(1_000, abs=60)


def test_rare_days_are_ignored_and_weekdays_can_be_selected(tmp_path):
    """2024-01-02 and -03 are a Tuesday and a Wednesday."""
    frame = records()
    strays = frame.head(3).assign(tpep_pickup_datetime=["2002-12-31 10:00:00", "2009-01-01 00:10:00", "2024-02-01 00:00:05"])
    demand = demand_from_trips(written(tmp_path, pandas.concat([frame, strays])))
    assert demand.rate.sum() == pytest.approx(2_000)
    assert demand_from_trips(written(tmp_path, frame), days="weekdays").rate.sum() == pytest.approx(2_000)
    with pytest.raises(UserError, match="days='all'"):
        demand_from_trips(written(tmp_path, frame), days="weekends")
    with pytest.raises(UserError, match="days='sunday'"):
        demand_from_trips(written(tmp_path, frame), days="sunday")


def test_a_path_is_a_file(tmp_path):
    for given, message in ((5, "not a path"), (tmp_path, "there is no file")):
        with pytest.raises(UserError, match=message):
            demand_from_trips(given)


def test_a_run_may_name_the_files(tmp_path):
    path, zones, times = written(tmp_path, records()), tmp_path / "zones.csv", tmp_path / "times.csv"
    zones.write_text(f"zone_id,up_km,cross_km\n{ZONES[0]},0.0,0.0\n{ZONES[1]},3.0,1.0\n")
    pairs = [f"{start},{end},{9 + (start == end)}" for start in ZONES[:2] for end in ZONES[:2]]
    times.write_text("\n".join(["from_zone,to_zone,minutes", *pairs]))
    overrides = [f"env.trips_file={path}", f"env.zones_file={zones}", "env.travel=table", f"env.times_file={times}"]
    run = compose.tuned("ospo", "ride_dispatch", "env.preset=demo", "env.demand_scale=2", *overrides)
    np.testing.assert_allclose(run.env_params.demand.rate, demand_from_trips(path, zones).rate, rtol=1e-6)
    assert run.env_params.demand_scale == 2.0
    assert run.env_params.times.tolist() == [[10.0, 9.0], [9.0, 10.0]]
    assert len(run.env.preset_params("manhattan-300").demand.up) == 2
    state, _ = run.env.reset(jax.random.key(0), run.env_params.replace(start=8 * 60))
    assert set(state.orders.trip.origin[state.orders.open].tolist()) <= {0, 1}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("env.trips_file=nowhere.csv", "there is no file nowhere.csv"),
        ("env.zones_file=zones.csv", "zones_file requires trips_file"),
        ("env.times_file=times.csv", "times_file requires travel"),
    ],
)
def test_invalid_files_of_a_run_are_reported(override, message):
    with pytest.raises(UserError, match=message):
        compose.tuned("ospo", "ride_dispatch", override)
