"""The safety supervisor and the intents of ``merge`` against a slow reference in plain Python, one vehicle at a time."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marljax.core.vector import vectorize
from marljax.envs.merge import Merge, humans, safety, traffic
from marljax.envs.merge import params as merge_params
from marljax.envs.merge.actions import FASTER, IDLE, LEFT, RIGHT, SLOWER, action_mask

HORIZON = 5
STEPS = 3 * HORIZON
ENV = Merge(safety=True, horizon=HORIZON)
PARAMS = ENV.default_params
RULES = merge_params.physics_of("marl_cavs", connected_lanes=True)
AHEAD = {"ab": "bc0", "bc0": "cd", "bc1": None, "cd": None, "jk": "kb", "kb": "bc1"}
BEHIND = {"ab": (), "bc0": ("ab",), "bc1": ("kb",), "cd": ("bc0", "bc1"), "jk": (), "kb": ("jk",)}
NAMES = ("ab", "bc0", "bc1", "cd", "jk", "kb")
STARTS = dict(zip(NAMES, (0, 320, 320, 420, 0, 220), strict=True))
ENDS = dict(zip(NAMES, (320, 420, 420, 520, 220, 320), strict=True))
FOLLOWING = {"ab": "bc0", "bc0": "cd", "bc1": "cd", "cd": "cd", "jk": "kb", "kb": "bc1"}


def centre(lane, x):
    return {"bc1": 4.0, "jk": 10.5, "kb": 7.25 + 3.25 * math.cos(math.pi * (x - 220) / 100)}.get(lane, 0.0)


def direction(lane, x):
    return math.atan(-3.25 * math.pi / 100 * math.sin(math.pi * (x - 220) / 100)) if lane == "kb" else 0.0


def nearest(x, y, heading):
    def distance(lane):
        outside = max(STARTS[lane] - x, 0) + max(x - ENDS[lane], 0)
        return abs(y - centre(lane, x)) + outside + abs(heading - direction(lane, x))

    return min(NAMES, key=distance)


class Car:
    """One vehicle of the reference: MARL_CAVs' physics."""

    def __init__(self, vehicles, slot):
        self.x, self.y, self.heading, self.speed = (
            float(leaf[slot]) for leaf in (vehicles.x, vehicles.y, vehicles.heading, vehicles.speed)
        )
        self.lane, self.target = NAMES[int(vehicles.lane[slot])], NAMES[int(vehicles.target_lane[slot])]
        self.target_speed = float(vehicles.target_speed[slot])
        self.crashed = bool(vehicles.crashed[slot])

    def follow(self):
        if self.target != "cd" and self.x > ENDS[self.target] - 2.5:
            self.target = FOLLOWING[self.target]

    def command(self, action):
        self.follow()
        if action == LEFT and self.target == "bc1" and 320 <= self.x < 425 and abs(self.y) <= 8:
            self.target = "bc0"
        if action in (FASTER, SLOWER):
            level = min(max(round((self.speed - 10) / 5), 0), 4) + (1 if action == FASTER else -1)
            self.target_speed = 10.0 + 5 * min(max(level, 0), 4)

    def steer(self):
        speed = self.speed if abs(self.speed) > 0.01 else math.copysign(0.01, self.speed)
        command = -(self.y - centre(self.target, self.x)) / 0.6
        turn = min(max(math.asin(min(max(command / speed, -1), 1)), -math.pi / 4), math.pi / 4)
        wanted = direction(self.target, self.x + 0.1 * self.speed) + turn
        slip = math.asin(min(max(2.5 / speed * 5 * (wanted - self.heading), -1), 1))
        return min(max(slip, -math.pi / 3), math.pi / 3)

    def advance(self, steering, acceleration):
        if self.crashed:
            steering, acceleration = 0.0, -self.speed
        if self.speed > 40:
            acceleration = min(acceleration, 40 - self.speed)
        slip = math.atan(math.tan(steering) / 2)
        self.x += self.speed * math.cos(self.heading + slip) / 15
        self.y += self.speed * math.sin(self.heading + slip) / 15
        self.heading += self.speed * math.sin(slip) / 2.5 / 15
        self.speed += acceleration / 15
        self.lane = nearest(self.x, self.y, self.heading)
        return self.x, self.y, self.heading, self.lane

    def drive(self, action):
        """The course [T] of a CAV under a decision."""
        self.command(action)
        course = []
        for _ in range(STEPS):
            self.follow()
            course.append(self.advance(self.steer(), (self.target_speed - self.speed) / 0.6))
        return course


def corners(place, length, width):
    x, y, heading, _ = place
    forward, aside = np.array([math.cos(heading), math.sin(heading)]), np.array([-math.sin(heading), math.cos(heading)])
    return [np.array([x, y]) + a * length / 2 * forward + b * width / 2 * aside for a, b in itertools.product((-1, 1), repeat=2)]


def collide(place, other, size=(4.5, 1.8)):
    if math.dist(place[:2], other[:2]) > 5:
        return False
    for angle in (place[2], other[2]):
        for axis in (np.array([math.cos(angle), math.sin(angle)]), np.array([-math.sin(angle), math.cos(angle)])):
            mine, theirs = [p @ axis for p in corners(place, 4.5, 1.8)], [p @ axis for p in corners(other, *size)]
            if max(mine) < min(theirs) or max(theirs) < min(mine):
                return False
    return True


def expand_trailing_dims(lane, x):
    if lane == "ab":
        return "kb" if x > 220 else None
    return {"bc0": "bc1", "bc1": "bc0", "kb": "ab"}.get(lane)


def is_front(lane, place, other):
    return lane is not None and other[0] > place[0] and other[3] in (lane, AHEAD[lane])


def is_rear(lane, place, other):
    return lane is not None and other[0] <= place[0] and other[3] in (lane, *BEHIND[lane])


def room(action, course, others):
    """Least room of a course [T] among the courses of others."""
    least = 1e4
    for t, place in enumerate(course):
        own, side = place[3], expand_trailing_dims(place[3], place[0])
        seen = [other[t] for other in others]
        changing = action in (LEFT, RIGHT)
        if changing:
            near = [o for o in seen for lane in (own, side) if is_front(lane, place, o) or is_rear(lane, place, o)]
        else:
            near = [o for o in seen if is_front(own, place, o)]
        ending = 420 - place[0] if own == "bc1" else 100.0
        least = min([least, ending, *([] if changing else [60.0]), *(abs(o[0] - place[0]) for o in near)])
    return least


def dangerous(course, others):
    obstacle = (420.0, 4.0, 0.0, None)
    return any(
        collide(place, obstacle, (1.8, 1.8)) or any(collide(place, other[t]) for other in others)
        for t, place in enumerate(course)
    )


def importance(car, cars, tie):
    ahead = [
        other.x - car.x for other in cars if other is not car and other.x > car.x and other.lane in (car.lane, AHEAD[car.lane])
    ]
    value = 0.5 * math.log(min([60.0, *ahead]) / (1.2 * max(car.speed, 0.01)))
    return value + 1e-3 * tie + (-0.5 - (100 - (420 - car.x)) / 100 if car.lane == "bc1" else 0.0)


def reference(vehicles, action, mask, noise, ties, held, collision_room):
    """Decisions, and what they rest on: (decisions [A], {agent: (dangers [n], rooms [n])}, order)."""
    alive = [slot for slot in range(12) if vehicles.alive[slot]]
    agents, drivers = [slot for slot in alive if slot < 6], [slot for slot in alive if slot >= 6]
    options = {(i, a): Car(vehicles, i).drive(a) for i in agents for a in range(5)}
    humans_course = []
    for slot in drivers:
        car, (steering, acceleration) = Car(vehicles, slot), held[slot]
        wobble = [1 + 0.05 * (2 * float(draw) - 1) for draw in noise[:, slot - 6]]
        humans_course.append([car.advance(steering * wobble[0], acceleration * wobble[1]) for _ in range(STEPS)])
    cars = {slot: Car(vehicles, slot) for slot in alive}
    order = sorted(agents, key=lambda slot: importance(cars[slot], list(cars.values()), float(ties[slot])))
    chosen, tables = {i: int(action[i]) for i in agents}, {}
    for i in order:
        others = [options[j, chosen[j]] for j in agents if j != i] + humans_course
        dangers = [dangerous(options[i, a], others) for a in range(5)]
        rooms = [room(a, options[i, a], others) for a in range(5)]
        tables[i] = (dangers, rooms)
        if dangers[chosen[i]]:
            worth = [room - collision_room * danger for room, danger in zip(rooms, dangers, strict=True)]
            chosen[i] = max((a for a in range(5) if mask[i][a]), key=lambda a, worth=worth: (worth[a], -a))
    return [chosen.get(i, int(action[i])) for i in range(6)], tables, options


@pytest.fixture(scope="module")
def situations():
    """Thirty states of random decisions with five vehicles or more around the merging lane; float64, on the host."""
    env = Merge()
    vec = vectorize(env, 48)

    @jax.jit
    def play(key):
        def body(carry, key):
            state, seen = carry
            drawn = jax.random.uniform(key, seen.action_mask.shape)
            action = jnp.argmax(jnp.where(seen.action_mask, drawn, -1.0), axis=-1)
            carry = vec.step(key, state, action, PARAMS)
            return carry, carry[0].env.vehicles

        return jax.lax.scan(body, vec.reset(key, PARAMS), jax.random.split(key, 60))[1]

    with jax.enable_x64(True):
        vehicles = jax.tree.map(np.asarray, play(jax.random.key(5)))
    here = vehicles.alive & (vehicles.x > 230) & (vehicles.x < 415)
    busy = np.argwhere(here.sum(axis=2) >= 5)
    picked = busy[np.random.default_rng(0).permutation(len(busy))[:30]]
    return [jax.tree.map(lambda leaf, at=tuple(place): leaf[at], vehicles) for place in picked]


@pytest.mark.parametrize("collision_room", [0.0, 1000.0])
def test_supervisor_equals_the_reference(situations, collision_room):
    """Decisions, and for every agent in its turn the collisions and the room of each action, in float64.

    With a large ``collision_room`` no replacement collides while another available action would not.
    """
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        params = PARAMS.replace(collision_room=collision_room)
        human = humans(PARAMS)
        look = jax.jit(lambda noise, v, d: safety.look_ahead(noise, v, d, human, RULES, PARAMS, HORIZON))
        decide = jax.jit(lambda *inputs: safety.resolve(*inputs, RULES, params))
        controls = jax.jit(lambda v, d: traffic.controls(v, d, human, RULES))
        replaced = 0
        for vehicles in map(on_device, situations):
            drivers = traffic.drivers_of(PARAMS.drivers, vehicles.driver)
            noise, ties = rng.random((2, 6)), rng.random(6)
            mask = np.asarray(action_mask(vehicles, vehicles.alive[:6], PARAMS))
            action = np.array([rng.choice(np.flatnonzero(row)) for row in mask])
            _, tangent, acceleration = controls(vehicles, drivers)
            held = list(zip(np.arctan(tangent), np.asarray(acceleration), strict=True))
            expected, tables, options = reference(vehicles, action, mask, noise, ties, held, collision_room)
            prospect = look(jnp.asarray(noise), vehicles, drivers)
            for (agent, a), course in options.items():
                places = np.array([place[:2] for place in course])
                np.testing.assert_allclose(prospect.cavs.x[:, agent, a], places[:, 0], atol=1e-9)
                np.testing.assert_allclose(prospect.cavs.y[:, agent, a], places[:, 1], atol=1e-9)
            order = safety.priority(vehicles, jnp.asarray(ties), PARAMS)
            found = decide(order, prospect, jnp.asarray(action), jnp.asarray(mask), vehicles.alive)
            assert found.tolist() == expected
            replaced += int(np.sum(np.asarray(found) != action))
            assert_tables(vehicles, prospect, order, action, found, tables)
        assert replaced >= 5


def on_device(vehicles):
    return jax.tree.map(jnp.asarray, vehicles)


def assert_tables(vehicles, prospect, order, action, found, tables):
    """Each agent's table in its turn, from the public parts: those treated before have taken what was found."""
    order = np.where(np.asarray(vehicles.alive[:6]), np.asarray(order), np.inf)
    for agent, (dangers, rooms) in tables.items():
        taken = np.where(order < order[agent], np.asarray(found), action)
        own = safety.Forecast(*(leaf[:, agent].T for leaf in prospect.cavs))
        cavs = (np.asarray(leaf)[:, np.arange(6), taken] for leaf in prospect.cavs)
        others = safety.Forecast(*(jnp.concatenate(pair, axis=1) for pair in zip(cavs, prospect.humans, strict=True)))
        present = vehicles.alive & (jnp.arange(12) != agent)
        assert safety.collision_ahead(own, others, present, RULES).tolist() == dangers
        changes_lane = jnp.isin(jnp.arange(5), jnp.array([LEFT, RIGHT]))
        np.testing.assert_allclose(safety.safety_room(own, others, present, changes_lane), rooms, atol=1e-9)


def test_intents_are_the_courses_at_present_targets(situations):
    """The neighbours' rows gain their places after 1 … 5 decisions; a human driver's stay 0."""
    with jax.enable_x64(True):
        env = Merge(intents=True)
        state = env.initial(jax.random.key(0), PARAMS)
        checked = 0
        for vehicles in map(on_device, situations[:6]):
            obs = np.asarray(env.observe(state.replace(vehicles=vehicles), PARAMS).obs)
            rows, courses = obs[:, :25].reshape(6, 5, 5), obs[:, 25:].reshape(6, 4, HORIZON, 2)
            for i in np.flatnonzero(vehicles.alive[:6]):
                for row, course in zip(rows[i, 1:], courses[i], strict=True):
                    x, y = (row[1] + rows[i, 0, 1]) * 150, (row[2] + rows[i, 0, 2]) * 12
                    who = [s for s in range(12) if vehicles.alive[s] and abs(vehicles.x[s] - x) + abs(vehicles.y[s] - y) < 1e-6]
                    if row[0] and who[0] < 6:
                        places = np.array([place[:2] for place in Car(vehicles, who[0]).drive(IDLE)])[2::3]
                        expected = (places - [float(vehicles.x[i]), float(vehicles.y[i])]) / [150, 12]
                        np.testing.assert_allclose(course, expected, atol=1e-9)
                        checked += 1
                    else:
                        assert not course.any()
        assert checked >= 20


@pytest.mark.slow
def test_supervised_random_decisions_crash_less():
    """In training and evaluation alike the environment replaces decisions, and reports which share."""
    crashes = []
    for supervised in (False, True):
        vec = vectorize(Merge(safety=supervised), 16)

        @jax.jit
        def play(key, vec=vec):
            def body(carry, key):
                key_action, key_step = jax.random.split(key)
                drawn = jax.random.uniform(key_action, carry[1].action_mask.shape)
                action = jnp.argmax(jnp.where(carry[1].action_mask, drawn, -1.0), axis=-1)
                carry = vec.step(key_step, carry[0], action, PARAMS)
                return carry, carry[1]

            return jax.lax.scan(body, vec.reset(key, PARAMS), jax.random.split(key, 101))[1]

        seen = play(jax.random.key(0))
        ends = jnp.sum(seen.last)
        crashes.append(float(jnp.sum(seen.metrics["crash"] * seen.last) / ends))
        intervened = float(jnp.sum(seen.metrics["intervened"] * seen.last) / ends)
        assert (intervened > 0.005) == supervised
    assert crashes[1] < 0.5 * crashes[0]
