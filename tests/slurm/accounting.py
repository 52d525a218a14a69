# Copyright The Relight authors. SPDX-License-Identifier: Apache-2.0
"""A real cluster with accounting in a real database, and with slurmrestd by token and by socket."""

from __future__ import annotations

import os
import pwd
import secrets
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.cluster import CannotRun, SlurmCluster, _is_open, _no_daemons, _run, _wait, install

PACKAGES = ("slurmdbd", "slurmrestd", "slurm-wlm-jwt-plugin", "slurm-wlm-mysql-plugin", "mariadb-server")


@dataclass(kw_only=True)
class AccountedSlurm(SlurmCluster):
    """Its slurmctld starts once the database and slurmdbd are up, since it needs to know its resources from them."""

    @property
    def dbd_port(self) -> int:
        return self.base_port + 19

    def _configure(self) -> None:
        super()._configure()
        key, conf = self.folder / "etc/jwt.key", self.folder / "etc/slurm.conf"
        key.write_bytes(secrets.token_bytes(32))
        _give(key, "slurm", 0o400)
        lines = [
            "AccountingStorageType=accounting_storage/slurmdbd", "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self.dbd_port}", f"AccountingStoragePass={self.folder}/run/munge.sock",
            "AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={key}",
        ]  # fmt: skip
        text = conf.read_text().replace("AccountingStorageType=accounting_storage/none", "\n".join(lines))
        conf.write_text(text)
        self._database()
        self._slurmdbd(key)

    def stop(self) -> None:
        for name in ("restd-token", "restd-socket"):
            self._end(name)
        for name in self.names:
            self.thaw(name)
        for name in (*self.names, "sshd", "slurmctld", "slurmdbd", "mariadbd"):
            self._end(name)
        super().stop()

    def _database(self) -> None:
        here, socket = self.folder / "mysql", str(self.folder / "run/mysql.sock")
        here.mkdir(exist_ok=True)
        _give(here, "mysql", 0o700)
        (self.folder / "run").chmod(0o1777)
        made = _run(["mariadb-install-db", "--no-defaults", "--user=mysql", f"--datadir={here}", "--skip-test-db",
                     "--auth-root-authentication-method=socket"])  # fmt: skip
        assert made.returncode == 0, made.stdout[-800:]
        self._daemon("mariadbd", ["mariadbd", "--no-defaults", "--user=mysql", f"--datadir={here}", f"--socket={socket}",
                                  "--skip-networking", f"--pid-file={here}/mysqld.pid", "--innodb-buffer-pool-size=32M",
                                  "--innodb-log-file-size=16M", "--innodb-lock-wait-timeout=900",
                                  "--innodb-flush-log-at-trx-commit=2", "--performance-schema=0"])  # fmt: skip
        ping = ["mariadb-admin", "--no-defaults", f"--socket={socket}", "ping"]
        _wait(lambda: _run(ping).returncode == 0, 60, "mariadbd", self._log("mariadbd"))
        grant = (
            "create database slurm_acct; create user slurm@localhost identified by 'slurm';"
            "grant all on slurm_acct.* to slurm@localhost;"
        )
        made = _run(["mariadb", "--no-defaults", f"--socket={socket}", "-e", grant])
        assert made.returncode == 0, made.stdout

    def _slurmdbd(self, key: Path) -> None:
        conf = self.folder / "etc/slurmdbd.conf"
        conf.write_text("\n".join([
            "AuthType=auth/munge", f"AuthInfo=socket={self.folder}/run/munge.sock", "AuthAltTypes=auth/jwt",
            f"AuthAltParameters=jwt_key={key}", "DbdHost=localhost", "DbdAddr=127.0.0.1", f"DbdPort={self.dbd_port}",
            "SlurmUser=slurm", f"PidFile={self.folder}/state/dbd.pid", f"LogFile={self.folder}/log/slurmdbd.log",
            "StorageType=accounting_storage/mysql", "StorageHost=localhost", "StorageUser=slurm",
            "StoragePass=slurm", "StorageLoc=slurm_acct",
        ]) + "\n")  # fmt: skip
        _give(conf, "slurm", 0o600)
        # libmariadb's "localhost" is a socket, whose place only this variable can tell.
        self._daemon_with("slurmdbd", ["slurmdbd", "-D"], {"MYSQL_UNIX_PORT": str(self.folder / "run/mysql.sock")})
        _wait(lambda: _is_open(self.dbd_port), 60, "slurmdbd", self._log("slurmdbd"))
        for argv in (("add", "cluster", "proof"), ("add", "account", "default", "Cluster=proof"),
                     ("add", "user", "root", "Account=default")):  # fmt: skip
            self.client("sacctmgr", "-i", *argv, check=False)

    def _daemon_with(self, name: str, argv: Sequence[str], environment: dict[str, str]) -> None:
        with self._log(name).open("ab") as log:
            self._started[name] = subprocess.Popen(
                argv, env={**self.environment, **environment}, stdout=log, stderr=log, stdin=subprocess.DEVNULL,
                start_new_session=True, cwd="/",
            )  # fmt: skip


@dataclass(kw_only=True)
class AccountedCluster:
    """The cluster, slurmrestd beside it, and a token of root's for that."""

    slurm: AccountedSlurm

    @classmethod
    def installed(cls, folder: Path, base_port: int) -> AccountedCluster:
        """Errors: CannotRun where the packages are not to be had."""
        install()
        state = "${db:Status-Status}"
        missing = [p for p in PACKAGES if _run(["dpkg-query", "-W", "-f", state, p]).stdout != "installed"]
        if missing:
            environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            with _no_daemons():
                get = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing]
                done = _run(get, env=environment)
            if done.returncode != 0:
                raise CannotRun(f"apt-get could not install {' '.join(missing)}: {done.stdout[-400:]}")
        return cls(slurm=AccountedSlurm(folder=folder, base_port=base_port, nodes=4))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.slurm.base_port + 20}"

    @property
    def token_file(self) -> Path:
        return self.slurm.folder / "run/rest.token"

    @property
    def socket(self) -> Path:
        return self.slurm.folder / "run/rest.sock"

    def start(self) -> None:
        self.slurm.start()
        self.token_file.write_text(self.slurm.client("scontrol", "token", "username=root", "lifespan=3600"))
        nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        by_token = [*nobody, "slurmrestd", "-a", "rest_auth/jwt", self.url.removeprefix("http://")]
        self.slurm._daemon_with("restd-token", by_token, {"SLURM_JWT": "daemon"})
        # By its socket slurmrestd serves the user whom it runs as: here root, which it has to be told to accept.
        by_socket = ["slurmrestd", "-a", "rest_auth/local", f"unix:{self.socket}"]
        self.slurm._daemon_with("restd-socket", by_socket, {"SLURMRESTD_SECURITY": "disable_user_check"})
        port = self.slurm.base_port + 20
        _wait(lambda: _is_open(port), 20, "slurmrestd", self.slurm._log("restd-token"))
        _wait(self.socket.exists, 20, "slurmrestd by socket", self.slurm._log("restd-socket"))

    def stop(self) -> None:
        self.slurm.stop()


def _give(path: Path, user: str, mode: int) -> None:
    owner = pwd.getpwnam(user)
    os.chown(path, owner.pw_uid, owner.pw_gid)
    path.chmod(mode)
