"""Kernels, bytes and loops counted in HLO: small modules counted by hand, and programs of known loops compiled for the CPU."""

import jax
import jax.numpy as jnp
import pytest

from marljax.aot.program import analyse

LAUNCH, BANDWIDTH = 2e-6, 1e9
MODULE = """HloModule jit_f

%scaled (p0: f32[256,4], p1: f32[]) -> f32[256,4] {
  %p0 = f32[256,4]{1,0} parameter(0)
  %p1 = f32[] parameter(1)
  %b = f32[256,4]{1,0} broadcast(%p1), dimensions={}
  ROOT %m = f32[256,4]{1,0} multiply(%p0, %b)
}

%row (p0: f32[100,256], p1: f32[1,256], p2: s32[]) -> f32[100,256] {
  %p0 = f32[100,256]{1,0} parameter(0)
  %p1 = f32[1,256]{1,0} parameter(1)
  %p2 = s32[] parameter(2)
  %z = s32[] constant(0)
  ROOT %u = f32[100,256]{1,0} dynamic-update-slice(%p0, %p1, %p2, %z)
}

%read (p0: f32[100,256], p1: s32[]) -> f32[1,256] {
  %p0 = f32[100,256]{1,0} parameter(0)
  %p1 = s32[] parameter(1)
  %z = s32[] constant(0)
  %s = f32[1,256]{1,0} dynamic-slice(%p0, %p1, %z), dynamic_slice_sizes={1,256}
  ROOT %n = f32[1,256]{1,0} negate(%s)
}

%condition (c: (s32[], f32[100,256], /*index=2*/f32[256,4])) -> pred[] {
  %c = (s32[], f32[100,256]{1,0}, /*index=2*/f32[256,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(8)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}

%body (c: (s32[], f32[100,256], /*index=2*/f32[256,4])) -> (s32[], f32[100,256], f32[256,4]) {
  %c = (s32[], f32[100,256]{1,0}, /*index=2*/f32[256,4]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %log = f32[100,256]{1,0} get-tuple-element(%c), index=1
  %x = f32[256,4]{1,0} get-tuple-element(%c), index=2
  %two = f32[] constant(2)
  %y = f32[256,4]{1,0} fusion(%x, %two), kind=kLoop, calls=%scaled
  %r = f32[1,256]{1,0} fusion(%log, %i), kind=kLoop, calls=%read
  %w = f32[100,256]{1,0} fusion(%log, %r, %i), kind=kLoop, calls=%row
  %sum = f32[256,4]{1,0} all-reduce(%y), to_apply=%scaled
  ROOT %t = (s32[], f32[100,256]{1,0}, f32[256,4]{1,0}) tuple(%next, %w, %sum)
}

ENTRY %main (log: f32[100,256], x: f32[256,4]) -> f32[256,4] {
  %log = f32[100,256]{1,0} parameter(0)
  %x = f32[256,4]{1,0} parameter(1)
  %zero = s32[] constant(0)
  %t = (s32[], f32[100,256]{1,0}, /*index=2*/f32[256,4]{1,0}) tuple(%zero, %log, %x)
  %loop = (s32[], f32[100,256]{1,0}, /*index=2*/f32[256,4]{1,0}) while(%t), condition=%condition, body=%body
  ROOT %out = f32[256,4]{1,0} get-tuple-element(%loop), index=2
}
"""
ARRAY, ROW, NUMBER = 4 * 256 * 4, 4 * 256, 4


def test_kernels_bytes_and_collectives_of_a_loop():
    """A slice that is read and a buffer that is updated in place count with the part that moves."""
    program = analyse(MODULE, LAUNCH, BANDWIDTH)
    [loop] = program.inner
    assert loop.trip_count == 8
    moved = [2 * ARRAY + NUMBER, 2 * ROW + NUMBER, 2 * ROW + NUMBER, 2 * ARRAY]
    assert loop.work.kernels == len(moved)
    assert loop.work.bytes == sum(moved)
    assert loop.work.seconds == pytest.approx(sum(max(LAUNCH, size / BANDWIDTH) for size in moved))
    assert (loop.work.collectives, loop.work.collective_bytes) == (1, ARRAY)
    assert program.work.kernels == 8 * len(moved)


def test_known_trip_count_and_workspace_of_a_library_call():
    known = ', backend_config={"known_trip_count":{"n":"5"}}'
    text = MODULE.replace("body=%body\n", f"body=%body{known}\n")
    call = '%sum = (f32[256,4]{1,0}, s8[4096]{0}) custom-call(%y), custom_call_target="matmul"'
    text = text.replace("%sum = f32[256,4]{1,0} all-reduce(%y), to_apply=%scaled", call)
    [loop] = analyse(text, LAUNCH, BANDWIDTH).inner
    assert loop.trip_count == 5
    assert loop.work.bytes == 2 * ARRAY + NUMBER + 2 * (2 * ROW + NUMBER) + 2 * ARRAY


def test_loops_of_a_compiled_program():
    """Nested scans of a program for the CPU."""

    @jax.jit
    def run(x):
        def outer(x, _):
            return jax.lax.scan(lambda x, _: (jnp.sin(x @ x), None), x, length=7)[0], None

        return jax.lax.scan(outer, x, length=3)[0]

    program = analyse(run.lower(jnp.ones((64, 64))).compile().as_text(), LAUNCH, BANDWIDTH)
    counts = [loop.trip_count for loop in program.walk()]
    assert counts == [1, 3, 7]
    assert program.work.kernels >= 21 * 2


def test_the_most_expensive_branch_of_a_conditional_counts():
    @jax.jit
    def run(flag, x):
        return jax.lax.cond(flag, lambda x: jnp.linalg.norm(jnp.sort(x @ x)), lambda x: x[0, 0], x)

    program = analyse(run.lower(True, jnp.ones((64, 64))).compile().as_text(), LAUNCH, BANDWIDTH)
    assert program.work.bytes > 4 * 64 * 64 * 4
