"""Work in forked processes, which have imported what this one has: importing ColossalAI takes seconds."""

import os
import pickle
import sys
import traceback


def start(work, *arguments):
    """Fork a process that does ``work(*arguments)`` and return its id; its exit code is 0 unless ``work`` raises."""
    sys.stdout.flush()
    process = os.fork()
    if process:
        return process
    code = 1
    try:
        work(*arguments)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)


def exit_code(process):
    """Wait for a process; minus the signal, if one killed it."""
    return os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])


def result_of(work, *arguments):
    """What ``work(*arguments)`` returns in a forked process, or the exception that it raises there."""
    reader, writer = os.pipe()

    def report():
        try:
            result = work(*arguments)
        except Exception as error:
            result = error
        os.write(writer, pickle.dumps(result))

    process = start(report)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pickle.loads(pipe.read())
    exit_code(process)
    return result
