"""The command `understudy`. If the wheel was installed without its extra `local`, it says so in one line."""

import sys


def main() -> int:
    try:
        from understudy_local import __main__ as command
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        print(  # noqa: T201 - a command line
            f"understudy: the package {package} is missing: install the extra `local` of understudy-training, "
            "with pip install 'PATH[local]', where PATH is the wheel or the checkout",
            file=sys.stderr,
        )
        return 2
    return command.main()
