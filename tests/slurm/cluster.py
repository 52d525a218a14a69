# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real Slurm of several nodes on one machine, from Debian's packages, without systemd.

Each node is a slurmd in host name, mount and process namespaces of its own, so that a power failure really
ends every process of a node. Needs root; signals only processes that it started itself. As a program:
`python tests/slurm/cluster.py FOLDER NODE` is the first process within a node.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

PACKAGES = ("munge", "slurm-wlm", "slurmctld", "slurmd", "slurm-client", "openssh-server", "openssh-client")
KEEP = {"stdin": subprocess.DEVNULL, "start_new_session": True, "cwd": "/"}


class CannotRun(RuntimeError):
    """Why there can be no cluster on this machine."""


class Broken(RuntimeError):
    """Something of the cluster did not come up in time; the tail of its log is in the text."""


def install() -> None:
    """Debian's packages, unless they are there. Errors: CannotRun with the reason."""
    if os.geteuid() != 0:
        raise CannotRun("a Slurm cluster needs root")
    if shutil.which("dpkg-query") is None or shutil.which("apt-get") is None:
        raise CannotRun("a Slurm cluster needs Debian's packages, and this is no Debian")
    state = "${db:Status-Status}"
    missing = [p for p in PACKAGES if _run(["dpkg-query", "-W", "-f", state, p]).stdout != "installed"]
    if not missing:
        return
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    get = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
    with _no_daemons():
        done = _run(get, env=environment)
        if done.returncode != 0:
            _run(["apt-get", "update", "-qq"], env=environment)
            done = _run(get, env=environment)
    if done.returncode != 0:
        raise CannotRun(f"apt-get could not install {' '.join(missing)}: {done.stdout[-400:]}")


@dataclass(kw_only=True)
class SlurmCluster:
    """`start` brings up munge, slurmctld, sshd and the nodes; `stop` ends them and removes the folder."""

    folder: Path
    nodes: int = 4
    base_port: int = 17_800
    cpus: int = 4
    slurmd_timeout_s: int = 10
    extra: Sequence[str] = ()
    _started: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {**os.environ, "SLURM_CONF": str(self.folder / "etc/slurm.conf")}

    @property
    def names(self) -> list[str]:
        return [f"node{number}" for number in range(1, self.nodes + 1)]

    @property
    def ssh_port(self) -> int:
        return self.base_port + 22

    def client(self, *argv: str, check: bool = True) -> str:
        """What a Slurm command says. Errors: Broken."""
        done = _run(argv, env=self.environment)
        if check and done.returncode != 0:
            raise Broken(f"{' '.join(argv)}: {done.stdout.strip()}")
        return done.stdout

    # -------------------------------------------------------------- up and down

    def start(self) -> None:
        for name in ("etc", "log", "run", "munge", "ssh", "spool"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)
        self._munge()
        self._configure()
        self._daemon("slurmctld", ["slurmctld", "-D"])
        _wait(lambda: "UP" in self.client("scontrol", "ping", check=False), 40, "slurmctld", self._log("slurmctld"))
        for name in self.names:
            self._node(name)
        _wait(self.is_ready, 60, "the nodes", self._log("slurmctld"))
        self._sshd()

    def stop(self) -> None:
        for name in self.names:
            self.thaw(name)
        for name in (*self.names, "sshd", "slurmctld", "munged"):
            self._end(name)
        shutil.rmtree(self.folder, ignore_errors=True)

    def is_ready(self) -> bool:
        states = self.states()
        return len(states) == self.nodes and all(state in {"idle", "mix", "alloc"} for state in states.values())

    def states(self) -> dict[str, str]:
        text = self.client("sinfo", "-hN", "-p", "main", "-o", "%N %t", check=False)
        return dict(line.split(maxsplit=1) for line in text.splitlines() if len(line.split()) == 2)

    # -------------------------------------------------------------- failures

    def power_off(self, name: str) -> None:
        """The kernel ends every process of the node with its first one."""
        self._started[name].kill()

    def kill_slurmd(self, name: str) -> None:
        for pid in self.pids(name):
            if b"slurmd\0-D" in _command(pid):
                os.kill(pid, signal.SIGKILL)

    def thaw(self, name: str) -> None:
        for pid in self.pids(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def heal(self, name: str) -> None:
        """Start the node again and wait until it can be used."""
        self._end(name)
        self._node(name)
        self.client("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        _wait(lambda: self.states().get(name) in {"idle", "mix", "alloc"}, 40, name, self._log(name))

    def pids(self, name: str) -> list[int]:
        """Every process within the node, by its number outside of it."""
        begun = self._started.get(name)
        parent = begun.pid if begun is not None else 0
        try:
            first = int(Path(f"/proc/{parent}/task/{parent}/children").read_text().split()[0])
            wanted = Path(f"/proc/{first}/ns/pid").readlink()
        except (OSError, IndexError):
            return []
        found = []
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and (entry / "ns/pid").readlink() == wanted:
                    found.append(int(entry.name))
        return found

    def ranks(self, name: str, program: str) -> list[int]:
        """The processes of a training program on a node; not the srun that started them."""
        told = {pid: _command(pid).split(b"\0") for pid in self.pids(name)}
        return [pid for pid, words in told.items() if b"python" in words[0] and program.encode() in words]

    # -------------------------------------------------------------- the parts

    def _munge(self) -> None:
        key = self.folder / "munge/munge.key"
        key.parent.chmod(0o700)
        key.write_bytes(secrets.token_bytes(1024))
        key.chmod(0o400)
        place = str(self.folder / "run/munge.sock")
        self._daemon("munged", ["munged", "--foreground", "--force", f"--socket={place}", f"--key-file={key}",
                                f"--log-file={self.folder}/munge/munged.log", f"--pid-file={self.folder}/run/munged.pid",
                                f"--seed-file={self.folder}/munge/seed"])  # fmt: skip
        _wait(lambda: _run(["munge", "-n", f"--socket={place}"]).returncode == 0, 20, "munged", self._log("munged"))

    def _configure(self) -> None:
        here, user = self.folder, pwd.getpwnam("slurm")
        state = here / "state"
        state.mkdir(exist_ok=True)
        os.chown(state, user.pw_uid, user.pw_gid)
        (here / "log").chmod(0o777)
        lines = [
            "ClusterName=proof", f"SlurmctldHost={socket.gethostname().split('.')[0]}(127.0.0.1)",
            f"SlurmctldPort={self.base_port + 17}", "SlurmUser=slurm", "SlurmdUser=root", "AuthType=auth/munge",
            f"AuthInfo=socket={here}/run/munge.sock", "CredType=cred/munge", "MailProg=/bin/true", "MpiDefault=none",
            f"StateSaveLocation={state}", f"SlurmdSpoolDir={here}/spool/%n", f"SlurmctldPidFile={state}/ctld.pid",
            f"SlurmdPidFile={here}/run/slurmd-%n.pid", f"SlurmctldLogFile={here}/log/slurmctld.log",
            f"SlurmdLogFile={here}/log/slurmd-%n.log", "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none",
            "JobAcctGatherType=jobacct_gather/none", "SelectType=select/cons_tres", "SelectTypeParameters=CR_CPU",
            "SlurmdParameters=config_overrides", "ReturnToService=1", f"SlurmdTimeout={self.slurmd_timeout_s}",
            "SlurmctldTimeout=10", "MessageTimeout=5", "TCPTimeout=2", "InactiveLimit=0", "KillWait=3", "MinJobAge=300",
            "JobRequeue=1", "SchedulerType=sched/backfill", "AccountingStorageType=accounting_storage/none",
            "SchedulerParameters=sched_interval=2,sched_min_interval=100000,bf_interval=2,batch_sched_delay=0",
            "PreemptType=preempt/partition_prio", "PreemptMode=REQUEUE", *self.extra,
        ]  # fmt: skip
        for number, name in enumerate(self.names, 1):
            port = self.base_port + 100 + number
            lines.append(
                f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs={self.cpus} RealMemory=1000"
            )
        lines += ["PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE",
                  "PartitionName=high Nodes=ALL MaxTime=INFINITE PriorityTier=10 PreemptMode=OFF"]  # fmt: skip
        (here / "etc/slurm.conf").write_text("\n".join(lines) + "\n")
        (here / "etc/cgroup.conf").write_text("CgroupAutomount=no\n")
        hosts = ["127.0.0.1 localhost", f"127.0.0.1 {socket.gethostname()}", *(f"127.0.0.1 {n}" for n in self.names)]
        (here / "etc/hosts").write_text("\n".join(hosts) + "\n")

    def _node(self, name: str) -> None:
        (self.folder / "spool" / name).mkdir(parents=True, exist_ok=True)
        roots = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
        spread = "slave" if "/" in roots else "unchanged"
        self._daemon(name, ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child=SIGKILL", "--propagation",
                            spread, "--mount-proc", sys.executable, __file__, str(self.folder), name])  # fmt: skip

    def _sshd(self) -> None:
        here = self.folder / "ssh"
        Path("/run/sshd").mkdir(exist_ok=True)
        for key in ("host", "client"):
            if not (here / key).exists():
                _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"proof-{key}", "-f", str(here / key)])
        gate = here / "gate"
        gate.write_text(GATE.format(python=sys.executable, conf=self.folder / "etc/slurm.conf"))
        gate.chmod(0o755)
        public = (here / "client.pub").read_text().strip()
        (here / "authorized").write_text(f'restrict,command="{gate}" {public}\n')
        (here / "known_hosts").write_text(f"[127.0.0.1]:{self.ssh_port} {(here / 'host.pub').read_text()}")
        (here / "config").write_text(
            f"Port {self.ssh_port}\nListenAddress 127.0.0.1\nHostKey {here}/host\nAuthorizedKeysFile {here}/authorized\n"
            "StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n"
            "PermitRootLogin forced-commands-only\nAllowTcpForwarding no\nPermitTTY no\nMaxSessions 32\nUseDNS no\n"
            f"PidFile {here}/sshd.pid\n"
        )
        self._daemon("sshd", ["/usr/sbin/sshd", "-D", "-e", "-f", str(here / "config")])
        _wait(lambda: _is_open(self.ssh_port), 20, "sshd", self._log("sshd"))

    def _daemon(self, name: str, argv: Sequence[str]) -> None:
        with self._log(name).open("ab") as log:
            begun = subprocess.Popen(argv, env=self.environment, stdout=log, stderr=log, **KEEP)  # type: ignore[call-overload]
        self._started[name] = begun

    def _end(self, name: str) -> None:
        begun = self._started.pop(name, None)
        if begun is None:
            return
        begun.terminate()
        try:
            begun.wait(0.5 if name in self.names else 10)
        except subprocess.TimeoutExpired:
            begun.kill()
            begun.wait(10)

    def _log(self, name: str) -> Path:
        return self.folder / "log" / f"{name}.out"


GATE = """#!{python}
# The forced command of a restricted key: these commands of Slurm, no shell, times in UTC.
import os, shlex, sys
allowed = {{"squeue": None, "sinfo": None, "sacct": None, "scancel": None,
            "scontrol": {{"show", "update", "requeuehold", "hold", "release", "--oneliner"}}}}
argv = shlex.split(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
if not argv or argv[0] not in allowed or (allowed[argv[0]] and argv[1:2] and argv[1] not in allowed[argv[0]]):
    sys.stderr.write("refused\\n")
    sys.exit(126)
os.execve("/usr/bin/" + argv[0], argv, {{"PATH": "/usr/bin:/bin", "TZ": "UTC", "SLURM_CONF": "{conf}"}})
"""


def _run(argv: Sequence[str], env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=600, check=False)  # fmt: skip
    except FileNotFoundError as why:
        return subprocess.CompletedProcess(argv, 127, str(why))


@contextlib.contextmanager
def _no_daemons():  # type: ignore[no-untyped-def]
    """Debian's way to install packages without starting what they bring."""
    policy = Path("/usr/sbin/policy-rc.d")
    if policy.exists():
        yield
        return
    policy.write_text("#!/bin/sh\nexit 101\n")
    policy.chmod(0o755)
    try:
        yield
    finally:
        policy.unlink(missing_ok=True)


def _wait(claim: Callable[[], bool], limit_s: float, what: str, log: Path) -> None:
    until = time.monotonic() + limit_s
    while not claim():
        if time.monotonic() > until:
            tail = log.read_text(errors="replace")[-800:] if log.exists() else ""
            raise Broken(f"{what} did not come up within {limit_s} s: {tail}")
        time.sleep(0.1)


def _is_open(port: int) -> bool:
    with contextlib.suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _first_process(folder: Path, name: str) -> None:
    """PID 1 of a node: its host name, its hosts, its scratch disk, its slurmd; and a reaper of orphans."""
    socket.sethostname(name)
    _run(["mount", "--bind", str(folder / "etc/hosts"), "/etc/hosts"])
    _run(["mount", "-t", "tmpfs", "-o", "size=64m,mode=1777", "tmpfs", "/dev/shm"])
    begun = subprocess.Popen(["slurmd", "-D", "-N", name], stdin=subprocess.DEVNULL)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        try:
            ended, _ = os.wait()
        except ChildProcessError:
            signal.pause()
        else:
            if ended == begun.pid:
                sys.stdout.write(f"slurmd of {name} ended\n")


if __name__ == "__main__":
    _first_process(Path(sys.argv[1]), sys.argv[2])
