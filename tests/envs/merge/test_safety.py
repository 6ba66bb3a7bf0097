"""The safety supervisor and the intents of ``merge`` against a reference in plain Python, one vehicle at a time."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from merge_reference import adjacent, boxes_overlap, is_front, is_rear

from marljax.core.vector import vectorize
from marljax.envs.merge import Merge, safety, traffic
from marljax.envs.merge.actions import FASTER, IDLE, LEFT, RIGHT, SLOWER, action_mask
from marljax.envs.merge.params import PHYSICS
from marljax.envs.merge.spawn import is_human

HORIZON = 5
STEPS = 3 * HORIZON
PARAMS = Merge().default_params
RULES = PHYSICS["marl_cavs"]
NAMES = ("ab", "bc0", "bc1", "cd", "jk", "kb")
STARTS = dict(zip(NAMES, (0, 320, 320, 420, 0, 220), strict=True))
ENDS = dict(zip(NAMES, (320, 420, 420, 520, 220, 320), strict=True))
NEXT = {"ab": "bc0", "bc0": "cd", "bc1": "cd", "cd": "cd", "jk": "kb", "kb": "bc1"}


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
            self.target = NEXT[self.target]

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
        heading = direction(self.target, self.x + 0.1 * self.speed) + turn
        slip = math.asin(min(max(2.5 / speed * 5 * (heading - self.heading), -1), 1))
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
        """The course [T] of a CAV under an action."""
        self.command(action)
        course = []
        for _ in range(STEPS):
            self.follow()
            course.append(self.advance(self.steer(), (self.target_speed - self.speed) / 0.6))
        return course


def room(action, course, others):
    """Minimum room of a course [T] among the courses of others."""
    least = 1e4
    for t, (x, _, _, own) in enumerate(course):
        present = [(lane, other_x) for other_x, _, _, lane in (other[t] for other in others)]
        if action in (LEFT, RIGHT):
            sides = (own, adjacent(own, x))
            gaps = [abs(o[1] - x) for o in present for lane in sides if is_front(lane, x, *o) or is_rear(lane, x, *o)]
        else:
            gaps = [60.0, *(o[1] - x for o in present if is_front(own, x, *o))]
        least = min([least, 420 - x if own == "bc1" else 100.0, *gaps])
    return least


def dangerous(course, others):
    def collide(pose, other, size=(4.5, 1.8)):
        near = math.dist(pose[:2], other[:2]) <= 5
        return near and boxes_overlap((pose[:2], 4.5, 1.8, pose[2]), (other[:2], *size, other[2]))

    return any(
        collide(pose, (420.0, 4.0, 0.0), (1.8, 1.8)) or any(collide(pose, other[t]) for other in others)
        for t, pose in enumerate(course)
    )


def priority(car, cars, tie):
    ahead = [other.x - car.x for other in cars if is_front(car.lane, car.x, other.lane, other.x)]
    value = 0.5 * math.log(min([60.0, *ahead]) / (1.2 * max(car.speed, 0.01)))
    return value + 1e-3 * tie + (-0.5 - (100 - (420 - car.x)) / 100 if car.lane == "bc1" else 0.0)


def reference(vehicles, action, mask, noise, ties, held, collision_room):
    """(actions [A], {agent: (dangers [n], rooms [n])}, {(agent, action): course})."""
    alive = [slot for slot in range(12) if vehicles.alive[slot]]
    agents, drivers = [slot for slot in alive if slot < 6], [slot for slot in alive if slot >= 6]
    options = {(i, a): Car(vehicles, i).drive(a) for i in agents for a in range(5)}
    humans_course = []
    for slot in drivers:
        car, (steering, acceleration) = Car(vehicles, slot), held[slot]
        wobble = [1 + 0.05 * (2 * float(draw) - 1) for draw in noise[:, slot - 6]]
        humans_course.append([car.advance(steering * wobble[0], acceleration * wobble[1]) for _ in range(STEPS)])
    cars = {slot: Car(vehicles, slot) for slot in alive}
    order = sorted(agents, key=lambda slot: priority(cars[slot], list(cars.values()), float(ties[slot])))
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
    """Thirty states under random actions with at least five vehicles around the merging lane; float64, on the host."""
    env = Merge()
    vec = vectorize(env, 48)

    @jax.jit
    def play(key):
        def body(carry, key):
            state, timestep = carry
            drawn = jax.random.uniform(key, timestep.action_mask.shape)
            action = jnp.argmax(jnp.where(timestep.action_mask, drawn, -1.0), axis=-1)
            carry = vec.step(key, state, action, PARAMS)
            return carry, carry[0].env.vehicles

        return jax.lax.scan(body, vec.reset(key, PARAMS), jax.random.split(key, 60))[1]

    with jax.enable_x64(True):
        vehicles = jax.tree.map(np.asarray, play(jax.random.key(5)))
    here = vehicles.alive & (vehicles.x > 230) & (vehicles.x < 415)
    busy = np.argwhere(here.sum(axis=2) >= 5)
    picked = busy[np.random.default_rng(0).permutation(len(busy))[:30]]
    return [jax.tree.map(lambda leaf, at=tuple(place): leaf[at], vehicles) for place in picked]


look_ahead = jax.jit(functools.partial(safety.look_ahead, physics=RULES, env_params=PARAMS, horizon=HORIZON))
resolve = jax.jit(functools.partial(safety.resolve, physics=RULES))
controls = jax.jit(functools.partial(traffic.controls, physics=RULES))
collision_ahead = jax.jit(functools.partial(safety.collision_ahead, physics=RULES))
safety_room = jax.jit(safety.safety_room)
priorities = jax.jit(functools.partial(safety.priority, env_params=PARAMS))


def test_supervisor_equals_the_reference(situations):
    """Actions, and for every agent in its turn the collisions and the room of each action, in float64.

    With a large ``collision_room`` no replacement collides while another available action would not.
    """
    replaced = [0, 0]
    with jax.enable_x64(True):
        rng = np.random.default_rng(1)
        for index, vehicles in enumerate(situations):
            env_params = PARAMS.replace(collision_room=1000.0 * (index % 2))
            drivers = traffic.drivers_of(PARAMS.drivers, vehicles.driver)
            noise, ties = rng.random((2, 6)), rng.random(6)
            mask = np.asarray(action_mask(vehicles, vehicles.alive[:6], PARAMS))
            action = np.array([rng.choice(np.flatnonzero(row)) for row in mask])
            _, tangent, acceleration = controls(vehicles, drivers, is_human(PARAMS, vehicles.x))
            held = list(zip(np.arctan(tangent), np.asarray(acceleration), strict=True))
            expected, tables, options = reference(vehicles, action, mask, noise, ties, held, env_params.collision_room)
            prediction = look_ahead(noise, vehicles)
            cavs = jax.device_get(prediction.cavs)
            for (agent, a), course in options.items():
                positions = np.array([pose[:2] for pose in course])
                np.testing.assert_allclose(np.stack([cavs.x, cavs.y], -1)[:, agent, a], positions, atol=1e-9)
            order = priorities(vehicles, ties)
            found = np.asarray(resolve(order, prediction, action, mask, vehicles.alive, env_params=env_params))
            assert found.tolist() == expected
            replaced[index % 2] += np.sum(found != action)
            assert_tables(vehicles, prediction, order, action, found, tables)
    assert min(replaced) >= 2


def assert_tables(vehicles, prediction, order, action, found, tables):
    """Each agent's table in its turn: the agents treated before it take what was found."""
    order = np.where(vehicles.alive[:6], np.asarray(order), np.inf)
    for agent, (dangers, rooms) in tables.items():
        taken = np.where(order < order[agent], found, action)
        own = safety.Forecast(*(np.asarray(leaf)[:, agent].T for leaf in prediction.cavs))
        cavs = (np.asarray(leaf)[:, np.arange(6), taken] for leaf in prediction.cavs)
        others = safety.Forecast(*(np.concatenate(pair, axis=1) for pair in zip(cavs, prediction.humans, strict=True)))
        present = vehicles.alive & (np.arange(12) != agent)
        assert collision_ahead(own, others, present).tolist() == dangers
        np.testing.assert_allclose(safety_room(own, others, present, np.isin(np.arange(5), (LEFT, RIGHT))), rooms, atol=1e-9)


def test_intents_are_the_courses_at_present_targets(situations):
    """The neighbours' rows add their positions after 1 … 5 decisions; those of human drivers are 0."""
    env, checked = Merge(intents=True), 0
    observe = jax.jit(env.observe)
    with jax.enable_x64(True):
        state, _ = env.reset(jax.random.key(0), PARAMS)
        for vehicles in situations[:6]:
            obs = np.asarray(observe(state.replace(vehicles=vehicles), PARAMS).obs)
            rows, courses = obs[:, :25].reshape(6, 5, 5), obs[:, 25:].reshape(6, 4, HORIZON, 2)
            for i in np.flatnonzero(vehicles.alive[:6]):
                for row, course in zip(rows[i, 1:], courses[i], strict=True):
                    x, y = (row[1] + rows[i, 0, 1]) * 150, (row[2] + rows[i, 0, 2]) * 12
                    slot = np.argmin(np.where(vehicles.alive, abs(vehicles.x - x) + abs(vehicles.y - y), np.inf))
                    if row[0] and slot < 6:
                        positions = np.array([pose[:2] for pose in Car(vehicles, slot).drive(IDLE)])[2::3]
                        expected = (positions - [vehicles.x[i], vehicles.y[i]]) / [150, 12]
                        np.testing.assert_allclose(course, expected, atol=1e-9)
                        checked += 1
                    else:
                        assert not course.any()
    assert checked >= 20
