"""fastllm debug: looks into what an engine has left behind."""

from fastllm_core.cli import flags


def run(argv: list[str]) -> int:
    flags.prepare_stdout()
    parser = flags.FlagParser("debug", "Runs a recording of an engine (--record-path) through the scheduler again.")
    parser.add_argument("what", choices=["replay"], help="replay: check that every plan comes out the same.")
    parser.add_argument("file", metavar="FILE", help="The recording.")
    args = parser.parse(argv)
    from fastllm_core._C import replay_recording

    report = replay_recording(args.file)
    print(
        f"{report.steps} steps of {report.requests} requests, {report.tokens} tokens: "
        f"the same {report.plan_bytes} bytes of plans"
    )
    if report.full:
        print("the recording ends at its size limit")
    if report.cut:
        print("the recording ends inside a frame: the process ended there")
    if report.failure:
        print(f"the last step failed: {report.failure}")
    return 0
