"""What pages add: the report of a run, the live page, tracking, the service and exports."""

from fedunseen.core.extensions import Command

OPTIONS = (
    ("live_page", "fedunseen.pages.cli.live_page:bind_address_of"),
    ("tracking", "fedunseen.pages.cli.track:trackers_of"),
)
AFTER_RUN = ("fedunseen.pages.report:write_pages",)
SWEEP_PAGES = ("fedunseen.pages.report.sweep_page:write_sweep_report",)
BENCH_PAGES = ("fedunseen.pages.report.bench_page:write_bench_report",)
LEAKAGE_PAGES = ("fedunseen.pages.report.leakage_page:write_leakage_report",)
BACKDOOR_PAGES = ("fedunseen.pages.report.backdoor_page:write_backdoor_report",)
LOOK_PAGES = ("fedunseen.pages.report.look_page:write_look_page",)
COMMANDS = (
    Command("report", "fedunseen.pages.cli.report:report", "Start"),
    Command("export", "fedunseen.pages.cli.export:export", "Use a finished run"),
    Command("serve", "fedunseen.pages.cli.serve:serve", "Use a finished run"),
)
