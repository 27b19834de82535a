import numpy as np
import pytest
import torch

from lifelong.envs.random_streams import Channel, Channels, Stream, integers, mix

LAYOUT = {
    "change": Channel(Stream.SCHEDULE, 2),
    "place": Channel(Stream.WORLD, 3),
    "wind": Channel(Stream.NOISE),
}


def draw(
    layout: dict[str, Channel], seed: int, lives: list[int], clock: int, event: int = 1
) -> dict[str, torch.Tensor]:
    channels = Channels(layout)
    keys = channels.keys(seed, torch.tensor(lives), event)
    return channels.draw(keys, torch.full((len(lives),), clock, dtype=torch.int64))


def test_the_mix_is_splitmix64s_finaliser() -> None:
    # The published generator from seed 1234567 (state += golden, then finalise): its known first outputs.
    golden, state, expected = (
        0x9E3779B97F4A7C15,
        1234567,
        [6457827717110365317, 3203168211198807973, 9817491932198370423],
    )
    for output in expected:
        state = (state + golden) % 2**64
        signed = np.array([state], dtype=np.uint64).view(np.int64)
        assert int(mix(torch.from_numpy(signed)).numpy().view(np.uint64)[0]) == output


def test_the_numbers_are_a_pure_function_of_seed_life_stream_column_and_clock() -> None:
    together = draw(LAYOUT, seed=7, lives=[0, 1, 2, 3], clock=41)
    alone = draw(LAYOUT, seed=7, lives=[2], clock=41)
    assert all(torch.equal(together[name][2:3], alone[name]) for name in LAYOUT)
    for other in (
        draw(LAYOUT, 8, [2], 41),
        draw(LAYOUT, 7, [3], 41),
        draw(LAYOUT, 7, [2], 42),
        draw(LAYOUT, 7, [2], 41, event=0),
    ):
        assert all((other[name] != alone[name]).all() for name in LAYOUT)


def test_a_new_channel_leaves_the_channels_of_other_streams_as_they_were() -> None:
    before = draw(LAYOUT, seed=7, lives=[0, 5], clock=3)
    after = draw({"gust": Channel(Stream.NOISE, 4), **LAYOUT}, seed=7, lives=[0, 5], clock=3)
    assert torch.equal(before["change"], after["change"])
    assert torch.equal(before["place"], after["place"])


@pytest.mark.parametrize("clock", [0, 2**24 - 2, 2**31 - 5, 2**53])
def test_the_numbers_are_uniform_and_independent_across_lives_columns_and_clocks(clock: int) -> None:
    channels = Channels({"a": Channel(Stream.WORLD, 8)})
    keys = channels.keys(0, torch.arange(64), event=1)
    sample = torch.stack([channels.draw(keys, torch.full((64,), clock + t))["a"] for t in range(64)])  # [T, B, C]
    count = sample.numel()
    assert float(sample.min()) >= 0
    assert float(sample.max()) < 1
    histogram = torch.histc(sample.flatten(), bins=32, min=0, max=1)
    chi_squared = float(((histogram - count / 32) ** 2 / (count / 32)).sum())
    assert chi_squared < 61.1  # 99.9 % quantile with 31 degrees of freedom
    centred = (sample - 0.5) * 12**0.5
    for a, b in ((centred[1:], centred[:-1]), (centred[:, 1:], centred[:, :-1]), (centred[..., 1:], centred[..., :-1])):
        assert abs(float((a * b).mean())) < 4 / a.numel() ** 0.5


def test_no_two_draws_of_many_lives_and_steps_are_equal() -> None:
    channels = Channels({"a": Channel(Stream.WORLD, 4)})
    keys = channels.keys(3, torch.arange(256), event=1)
    sample = torch.stack([channels.draw(keys, torch.full((256,), t))["a"] for t in range(200)])
    assert len(sample.unique()) == sample.numel()


def test_integers_cover_their_range_evenly() -> None:
    values = integers(draw({"a": Channel(Stream.WORLD, 30_000)}, 0, [0], 0)["a"], 5)
    counts = values.flatten().bincount(minlength=5)
    assert len(counts) == 5
    assert float(((counts - 6000) ** 2 / 6000).sum()) < 18.5  # 99.9 % quantile, 4 degrees of freedom
