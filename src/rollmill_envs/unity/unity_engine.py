"""A running build and the connection to it: ML-Agents' own, with the waits bounded and the port held by us alone."""

from __future__ import annotations

import atexit
import signal
import socket
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import grpc

from rollmill.errors import Refused, RollmillError
from rollmill_envs.unity import protocol
from rollmill_envs.unity.build import start_build
from rollmill_envs.unity.config import UnityConfig
from rollmill_envs.unity.player_log import CappedLog

protocol.prepare()  # before anything of mlagents_envs is imported

# ruff: noqa: E402
from mlagents_envs import logging_util
from mlagents_envs.base_env import ActionTuple
from mlagents_envs.communicator_objects.unity_input_pb2 import UnityInputProto
from mlagents_envs.communicator_objects.unity_message_pb2 import UnityMessageProto
from mlagents_envs.communicator_objects.unity_output_pb2 import UnityOutputProto
from mlagents_envs.communicator_objects.unity_to_external_pb2_grpc import add_UnityToExternalProtoServicer_to_server
from mlagents_envs.environment import UnityEnvironment
from mlagents_envs.exception import UnityException
from mlagents_envs.rpc_communicator import RpcCommunicator, UnityToExternalServicerImplementation
from mlagents_envs.side_channel.engine_configuration_channel import EngineConfigurationChannel
from mlagents_envs.side_channel.environment_parameters_channel import EnvironmentParametersChannel

__all__ = ["ActionTuple", "BuildEnded", "NoAnswer", "UnityEngine", "UnityException"]

_LOOK_SECONDS = 0.2  # between two checks that the build is alive; its answers are received at once
_CLOSE_SECONDS = 2.0  # that a build has to exit by itself

logging_util.set_log_level(logging_util.WARNING)  # its greetings go to stdout, which belongs to the run


class NoAnswer(RollmillError):
    """The build was silent for longer than `timeout`."""


class BuildEnded(RollmillError):
    """The build's process has ended."""


class UnityEngine(UnityEnvironment):  # type: ignore[misc]  # untyped
    """A build that was started with a seed; `parameters` sets its float parameters with the next message."""

    _process: Any  # ML-Agents' own variable: what it closes

    def __init__(self, path: Path, settings: UnityConfig, seed: int) -> None:
        self._path, self._settings = path, settings
        self._build: subprocess.Popen[bytes] | None = None
        self._log: CappedLog | None = None
        self.parameters = EnvironmentParametersChannel()
        engine_settings = EngineConfigurationChannel()
        engine_settings.set_configuration_parameters(
            width=settings.width, height=settings.height, time_scale=settings.time_scale, capture_frame_rate=60
        )
        for name, value in settings.parameters.items():
            self.parameters.set_float_parameter(name, value)
        try:
            # without a file name it starts nothing itself and waits for a connection
            super().__init__(seed=seed, base_port=0, side_channels=[self.parameters, engine_settings])
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """Close the connection and see that the process is gone."""
        atexit.unregister(self._close)  # else every build that ever ran would be kept until we exit
        self._process = None  # ML-Agents would wait for it for a minute, and not reap it
        if hasattr(self, "_communicator"):
            with suppress(Exception):  # the other end may be gone
                self._close()
        if self._build is not None:
            try:
                self._build.wait(timeout=_CLOSE_SECONDS if self._loaded_once else 0.0)
            except subprocess.TimeoutExpired:
                self._build.kill()
                self._build.wait()
        if self._log is not None:
            self._log.close()
            self._log = None

    @property
    def _loaded_once(self) -> bool:
        """Whether the build ever sent a message, and so can be asked to exit."""
        return hasattr(self, "_env_specs")

    def _get_communicator(self, worker_id: int, base_port: int, timeout_wait: int) -> _Communicator:
        """Called by the constructor: listen, and only then start the build, which tries to connect just once."""
        communicator = _Communicator(self._settings)
        self._build = self._process = start_build(self._path, self._settings, communicator.port)
        if self._settings.log_folder is not None:
            assert self._build.stdout is not None
            folder = Path(self._settings.log_folder).expanduser()
            self._log = CappedLog(folder, self._settings.log_megabytes, self._build.stdout)
        return communicator

    def _poll_process(self) -> None:
        """Called while waiting for an answer."""
        code = None if self._build is None else self._build.poll()
        if code is not None:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            hint = "env.args.log_folder has its output" if self._log else "set env.args.log_folder to see its output"
            raise BuildEnded(f"the build {how}; {hint}")


class _Communicator(RpcCommunicator):  # type: ignore[misc]  # untyped
    """The server that the build connects to: on loopback, on a port that no other process has or can take."""

    def __init__(self, settings: UnityConfig) -> None:
        self._settings = settings
        super().__init__(timeout_wait=settings.timeout)

    def create_server(self) -> None:
        """Called by the constructor."""
        first = 0 if self._settings.port is None else self._settings.port + self._settings.worker_id
        last = 0 if first == 0 else min(first + self._settings.ports - 1, 65535)
        self.unity_to_external = UnityToExternalServicerImplementation()
        for port in range(first, last + 1):
            if port and not _is_free(port):  # gRPC would print an error of its own
                continue
            # ML-Agents shares its port (so_reuseport): two programs then answer each other's builds
            server = grpc.server(ThreadPoolExecutor(max_workers=2), options=(("grpc.so_reuseport", 0),))
            with suppress(RuntimeError):  # another process was faster
                self.port = server.add_insecure_port(f"127.0.0.1:{port}")  # 0: the kernel chooses
                add_UnityToExternalProtoServicer_to_server(self.unity_to_external, server)
                server.start()
                self.server = server
                self.is_open = True
                return
        tried = f"ports {first} to {last} are" if last > first else f"port {first} is"
        raise Refused(f"env.args.port={self._settings.port}: {tried} in use; leave env.args.port out")

    def poll_for_timeout(self, poll_callback: Callable[[], None] | None = None) -> None:
        """Wait for a message; ML-Agents' own wait is a busy loop, or checks the build only every six seconds."""
        deadline = monotonic() + self.timeout_wait
        while not self.unity_to_external.parent_conn.poll(max(0.0, min(_LOOK_SECONDS, deadline - monotonic()))):
            if poll_callback is not None:
                poll_callback()
            if monotonic() >= deadline:
                raise NoAnswer(f"the build gave no answer within {self.timeout_wait:g} seconds")

    def initialize(self, inputs: UnityInputProto, poll_callback: Callable[[], None] | None = None) -> UnityOutputProto:
        """Exchange first messages; unlike ML-Agents' own its wait for the second answer is bounded."""
        self.poll_for_timeout(poll_callback)
        greeting = self.unity_to_external.parent_conn.recv().unity_output
        message: Any = UnityMessageProto()
        message.header.status = 200
        message.unity_input.CopyFrom(inputs)
        self.unity_to_external.parent_conn.send(message)
        self.poll_for_timeout(poll_callback)
        self.unity_to_external.parent_conn.recv()
        return greeting


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # what was closed a moment ago is free
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
