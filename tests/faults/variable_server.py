"""`bin/launch.py` with a further server, for parameters and reports, of an off-policy run."""

import dataclasses
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tfrl.launch import job, launch  # noqa: E402
from tfrl.launch.local_engine import free_ports  # noqa: E402


def roles(options, addresses, **at):
    """The processes of a job; the variable server is the last of the servers."""
    made = job.roles(options, addresses, **at)
    (port,) = free_ports(1)
    with_it = []
    for role in made:
        if role.kind in (job.LEARNER, job.COLLECTOR):
            flags = (*role.flags, f"--variable_server=localhost:{port}")
            role = dataclasses.replace(role, flags=flags)
        if role.kind == job.EVALUATOR:
            flags = (*role.flags, f"--heartbeat_server=localhost:{port}")  # the last one counts
            role = dataclasses.replace(role, flags=flags)
        with_it.append(role)
    index = len(addresses)
    flags = [
        flag
        for flag in made[0].flags
        if not flag.startswith(("--port=", "--root_dir=", "--num_servers="))
    ]
    flags += [f"--port={port}", f"--root_dir={options.root_dir}/{job.SERVERS}/{index}"]
    server = dataclasses.replace(made[0], index=index, flags=tuple(flags))
    return [*with_it[:index], server, *with_it[index:]]


if __name__ == "__main__":
    launch.roles = roles
    launch.run()
