"""A scenario with all its settings resolved and checked, from which games are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rollmill.envs.config import EnvConfig
from rollmill.envs.families import read_args
from rollmill.errors import Refused, nearest
from rollmill_envs.doom.actions import DELTA, Flat, Groups, combined_actions, flat_actions
from rollmill_envs.doom.config import DoomConfig
from rollmill_envs.doom.scenarios import PREFIX, Conventions, conventions_of, package_folder

HEALTH = "HEALTH"
_SETTER = "set_{}_reward"


@dataclass(frozen=True)
class DoomSpec:
    """One kind of game."""

    env_id: str
    settings: DoomConfig
    file: Path  # of the scenario
    game_file: str | None
    actions: Flat | Groups
    variables: tuple[str, ...]  # that the engine reports: those that are observed, and health if it is rewarded
    rewards: tuple[tuple[str, float], ...]
    health_bonus: float
    tics: int  # 0: no limit
    map: str | None
    bots: int | None  # None: a game for one
    hides_weapon: bool

    def make_game(self) -> Any:
        """A game that is set up but not started."""
        import vizdoom

        game = vizdoom.DoomGame()
        game.load_config(str(self.file))
        game.set_mode(vizdoom.Mode.PLAYER)
        game.set_window_visible(False)
        game.set_sound_enabled(False)
        for extra in ("audio_buffer", "automap_buffer", "depth_buffer", "labels_buffer", "notifications_buffer"):
            getattr(game, f"set_{extra}_enabled")(False)
        game.set_available_buttons([vizdoom.Button.__members__[name] for name in self.actions.buttons])
        game.set_available_game_variables([vizdoom.GameVariable.__members__[name] for name in self.variables])
        game.set_episode_timeout(0)  # we apply the limit: at its own limit the engine shows no last screen
        for name, reward in self.rewards:
            getattr(game, _SETTER.format(name))(reward)
        if self.game_file is not None:
            game.set_doom_game_path(self.game_file)
        if self.map is not None:
            game.set_doom_map(self.map)
        if self.settings.skill is not None:
            game.set_doom_skill(self.settings.skill)
        if self.hides_weapon:
            for what in ("weapon", "crosshair", "decals", "particles"):
                getattr(game, f"set_render_{what}")(False)
        return game


def make_spec(config: EnvConfig) -> DoomSpec:
    """Resolve and check the settings; mistakes are refused in one line."""
    folder = package_folder()
    try:
        import vizdoom
    except ImportError as error:
        raise Refused(f"env.id={config.id} needs the extra 'doom': pip install \"rollmill[doom]\"") from error
    assert folder is not None
    settings = read_args(config, DoomConfig)
    scenario = config.id.removeprefix(PREFIX)
    usual = conventions_of(scenario, settings.conventions == "sample_factory")
    file = folder / "scenarios" / f"{scenario}.cfg"
    game = vizdoom.DoomGame()
    game.load_config(str(file))  # nothing is started: this only reads

    _refuse_unknown(config, "resolution", [f"RES_{settings.resolution.upper()}"], vizdoom.ScreenResolution, "RES_")
    _refuse_unknown(config, "variables", settings.variables, vizdoom.GameVariable)
    _refuse_unknown(config, "buttons", settings.buttons or (), vizdoom.Button)
    _refuse_unknown(
        config, "combinations", [name for names in settings.combinations or () for name in names], vizdoom.Button
    )
    rewards = {**usual.rewards, **settings.rewards}
    _refuse_unknown_rewards(config, game, settings.rewards)
    if settings.bots is not None and usual.bots is None:
        raise Refused(f"env.args.bots={settings.bots}: {config.id} is a game for one; remove it")
    health_bonus = usual.health_bonus if settings.health_bonus is None else settings.health_bonus
    return DoomSpec(
        env_id=config.id,
        settings=settings,
        file=file,
        game_file=_game_file(config, settings, game),
        actions=_actions(config, settings, usual, [button.name for button in game.get_available_buttons()]),
        variables=tuple(dict.fromkeys([*settings.variables, *([HEALTH] if health_bonus else [])])),
        rewards=tuple(rewards.items()),
        health_bonus=health_bonus,
        tics=game.get_episode_timeout() if settings.tics is None else settings.tics,
        map=settings.map or usual.map,
        bots=usual.bots if settings.bots is None else settings.bots,
        hides_weapon=usual.hides_weapon,
    )


def _actions(config: EnvConfig, settings: DoomConfig, usual: Conventions, own: Sequence[str]) -> Flat | Groups:
    if settings.combinations is not None:
        if not settings.combinations:
            raise Refused("env.args.combinations=[]: there is nothing to choose from; list some, or remove the key")
        return combined_actions(settings.combinations)
    # a button that takes a number duplicates others; it is used only if it is named
    buttons = settings.buttons or usual.buttons or [name for name in own if not name.endswith(DELTA)]
    if settings.actions == "groups":
        return Groups(buttons)
    if numbered := [name for name in buttons if name.endswith(DELTA)]:
        raise Refused(f"env.args.buttons: {numbered[0]} takes a number; set env.args.actions=groups")
    return flat_actions(buttons)


def _game_file(config: EnvConfig, settings: DoomConfig, game: Any) -> str | None:
    """The .wad file of the game itself; None: the one that the engine takes by default."""
    if settings.game is not None:
        path = Path(settings.game).expanduser().resolve()
        if not path.is_file():
            raise Refused(f"env.args.game={settings.game}: no such file; give the path of a .wad file")
        return str(path)
    wanted = Path(game.get_doom_game_path()) if game.get_doom_game_path() else None
    if wanted is None or wanted.is_file():
        return None
    free = Path(str(package_folder()), wanted.name)
    if free.is_file():
        return str(free)
    raise Refused(f"env.id={config.id} needs {wanted.name}, which is not free; give its path as env.args.game")


def _refuse_unknown(config: EnvConfig, key: str, given: Sequence[str], kind: Any, prefix: str = "") -> None:
    """Refuse a name that an enumeration of the engine doesn't have."""
    known = list(kind.__members__)
    for name in given:
        if name not in known:
            shown = name.removeprefix(prefix)
            shown = shown.lower() if prefix else shown
            spelled = [other.removeprefix(prefix).lower() if prefix else other for other in known]
            raise Refused(f"env.args.{key}: the engine has no '{shown}'; {nearest(shown, spelled)}")


def _refuse_unknown_rewards(config: EnvConfig, game: Any, rewards: dict[str, float]) -> None:
    start, end = _SETTER.split("{}")
    known = [name[len(start) : -len(end)] for name in dir(game) if name.startswith(start) and name.endswith(end)]
    for name in rewards:
        if name not in known:
            raise Refused(f"env.args.rewards.{name}: the engine has no such reward; {nearest(name, known)}")
