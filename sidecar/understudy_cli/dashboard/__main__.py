"""`python -m understudy_cli.dashboard`: the program of the chart's Deployment. Users run `understudy dashboard`.

It needs neither typer nor rich, which the image of the operator does not have.
"""

import argparse
import os
import sys

from understudy_cli.api import Api
from understudy_cli.command_errors import CommandFailed
from understudy_cli.credentials import find_access
from understudy_cli.dashboard.fleets import cluster_fleets
from understudy_cli.dashboard.server import serve


def main(arguments: list[str]) -> int:
    """The exit code."""
    parser = argparse.ArgumentParser(prog="understudy_cli.dashboard")
    parser.add_argument("--listen", default="127.0.0.1", help="the address; empty: all")
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--namespaces", default="", help="names with commas between; empty: all")
    parser.add_argument("--hosts", default="", help="names by which browsers may call it, with commas between")
    given = parser.parse_args(arguments)
    hosts = [name for name in given.hosts.split(",") if name]
    try:
        fleets = cluster_fleets(Api(find_access("", "", os.environ)), given.namespaces.split(","))
        serve(fleets, given.listen, given.port, hosts, lambda url: print(f"the dashboard is at {url}", flush=True))  # noqa: T201
    except CommandFailed as failed:
        sys.stderr.write(f"understudy: {failed}\n")
        return int(failed.code)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
