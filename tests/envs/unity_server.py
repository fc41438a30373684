"""A stand-in for a Unity build: a program that speaks the protocol of ML-Agents, with a small scene behind it.

As in Unity, Python is the server and the build is the client: it connects to `--mlagents-port`, sends what its agents
see and gets what they shall do. `write_build` makes an executable of it.
"""

from __future__ import annotations

import importlib.util
import io
import os
import random
import struct
import sys
import time
import uuid
from pathlib import Path

import grpc

ROOT = Path(__file__).parents[2]
PARAMETERS = uuid.UUID("534c891e-810f-11ea-a9d0-822485860400")
HEIGHT, WIDTH = 6, 10


def write_build(folder: Path, kind: str, name: str = "Scene.x86_64") -> Path:
    """An executable that behaves like the build of a scene of that kind."""
    path = folder / name
    load = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})"
    path.write_text(f"#!{sys.executable}\n{load}\nimport unity_server\nunity_server.main({kind!r})\n")
    path.chmod(0o755)
    return path


def load_messages():
    """The messages by the project's own file, but without importing the project: builds start often in tests."""
    path = ROOT / "src" / "rollmill_envs" / "unity" / "protocol.py"
    spec = importlib.util.spec_from_file_location("unity_protocol", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.prepare()


def image(t, episode):
    """Every pixel tells its place, the step and the episode; without numpy, which takes long to import."""
    return bytes(part for place in range(HEIGHT * WIDTH) for part in (place, t % 256, episode % 256))


class Scene:
    """One agent; its vector is (a random number, the step, the episode), its reward the sum of its actions."""

    def __init__(self, kind, seed):
        self.kind = kind
        self.random = random.Random(seed)
        self.parameters = {}
        self.episode = -1
        self.exchanges = 0
        self.described = False

    def begin(self):
        if "seed" in self.parameters:
            self.random = random.Random(self.parameters["seed"])
            self.episode = -1
        self.episode += 1
        self.t = 0
        self.start = struct.unpack("f", struct.pack("f", self.random.random()))[0]

    def answer(self, rl_input, output):
        from mlagents_envs.communicator_objects import command_pb2

        for name, value in read_parameters(rl_input.side_channel):
            self.parameters[name] = value
        self.exchanges += 1
        infos = output.rl_output.agentInfos["Ball?team=0"].value
        if rl_input.command == command_pb2.RESET:
            self.begin()
            self.add(infos, 0.0)
        else:
            self.advance(rl_input, infos)
        if not self.described:
            self.described = True
            self.describe(output)

    def advance(self, rl_input, infos):
        if self.kind == "lazy" and self.exchanges % 3:
            return  # the agent asks for a decision every third exchange only
        sent = rl_input.agent_actions["Ball?team=0"].value
        self.actions = [*sent[0].continuous_actions, *sent[0].discrete_actions] if sent else []
        self.t += 1
        if self.kind == "dies" and self.t == 3:
            print("the scene falls apart", flush=True)
            os._exit(3)
        if self.kind == "dies-once" and self.t == 3 and not Path("died").exists():
            Path("died").touch()
            os._exit(3)
        if self.kind == "loud":
            print("x" * 999, flush=True)
        reward = float(sum(self.actions))
        if self.t < self.parameters.get("length", 5):
            self.add(infos, reward)
            return
        self.add(infos, reward, done=True)
        self.begin()  # as Unity does: the agent goes on at once, in the same message
        self.add(infos, 0.0)

    def add(self, infos, reward, done=False):
        for agent in range(2 if self.kind == "crowd" else 1):
            info = infos.add()
            info.id = 7 + agent
            info.reward = reward
            info.done = done
            info.max_step_reached = done and self.parameters.get("interrupted", 0.0) == 1.0
            if self.kind in ("visual", "mixed"):
                info.action_mask.extend([False] * 4 + [self.t == 1])
            if self.kind != "visual":
                self.see_vector(info.observations.add())
            if self.kind in ("visual", "mixed"):
                self.see_camera(info.observations.add())

    def see_vector(self, observation):
        observation.name = "Vector.Sensor"
        observation.shape.append(3)
        observation.dimension_properties.append(1)
        observation.float_data.data.extend([self.start, self.t, self.episode])

    def see_camera(self, observation):
        pixels = image(self.t, self.episode)
        observation.name = "Camera"
        observation.shape.extend([HEIGHT, WIDTH, 3])
        observation.dimension_properties.extend([2, 2, 1])
        if self.kind == "visual":
            from PIL import Image

            file = io.BytesIO()
            Image.frombytes("RGB", (WIDTH, HEIGHT), pixels).save(file, "PNG")
            observation.compression_type = 1
            observation.compressed_data = file.getvalue()
        else:
            scale = self.parameters.get("brightness", 255.0)
            observation.float_data.data.extend([value / scale for value in pixels])

    def describe(self, output):
        brain = output.rl_initialization_output.brain_parameters.add()
        brain.brain_name = "Ball?team=0"
        brain.is_training = True
        spec = brain.action_spec
        if self.kind in ("visual", "mixed"):
            sizes = [3, 2]
            spec.num_discrete_actions = len(sizes)
            spec.discrete_branch_sizes.extend(sizes)
        elif self.kind == "loud":
            spec.num_discrete_actions = 1
            spec.discrete_branch_sizes.extend([4])
        elif self.kind != "spectator":
            spec.num_continuous_actions = 2
        if self.kind == "hybrid":
            spec.num_discrete_actions = 1
            spec.discrete_branch_sizes.extend([4])


def read_parameters(data):
    """The float parameters in a side channel message: (channel, length, body) one after the other."""
    at = 0
    while at < len(data):
        channel = uuid.UUID(bytes_le=bytes(data[at : at + 16]))
        (length,) = struct.unpack_from("<i", data, at + 16)
        body = data[at + 20 : at + 20 + length]
        at += 20 + length
        if channel == PARAMETERS:
            (size,) = struct.unpack_from("<i", body)
            kind, value = struct.unpack_from("<if", body, 4 + size)
            assert kind == 0
            yield body[4 : 4 + size].decode("ascii"), value


def main(kind):
    arguments = sys.argv[1:]
    if kind == "deaf":  # never connects
        time.sleep(600)
    if kind == "crash":
        print("no such graphics card", flush=True)
        sys.exit(7)
    load_messages()
    from mlagents_envs.communicator_objects.unity_message_pb2 import UnityMessageProto
    from mlagents_envs.communicator_objects.unity_to_external_pb2_grpc import UnityToExternalProtoStub

    port = arguments[arguments.index("--mlagents-port") + 1]
    stub = UnityToExternalProtoStub(grpc.insecure_channel(f"localhost:{port}"))

    def exchange(message):
        message.header.status = 200
        reply = stub.Exchange(message)
        if reply.header.status != 200:
            if kind == "unkillable":
                time.sleep(600)
            os._exit(0)
        return reply.unity_input

    greeting = UnityMessageProto()
    initial = greeting.unity_output.rl_initialization_output
    initial.name = "Scene"
    initial.communication_version = "9.0.0" if kind == "newer" else "1.5.0"
    initial.package_version = "2.1.0"
    initial.capabilities.baseRLCapabilities = True
    scene = Scene(kind, exchange(greeting).rl_initialization_input.seed)
    if kind == "mute":  # connects, and then says nothing more
        time.sleep(600)
    try:
        given = exchange(UnityMessageProto())
        while True:
            message = UnityMessageProto()
            scene.answer(given.rl_input, message.unity_output)
            given = exchange(message)
    except grpc.RpcError:  # the other side has gone
        if kind == "unkillable":
            time.sleep(600)
        os._exit(1)
