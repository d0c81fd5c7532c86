"""`sublet budget show|set|top-up`: what may be spent, and what is: by all, by teams, users and jobs."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from sublet.cli import options as opt
from sublet.cli.print.tables import form, print_document

__all__ = ["budget_app"]


budget_app = typer.Typer(help="What may be spent, and what is.", rich_markup_mode=None)


@budget_app.callback(invoke_without_command=True)
def _budget(context: typer.Context, output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Limits and spending; without a further word, as `show`."""
    if context.invoked_subcommand is None:
        show(output=output, json=json)
    elif opt.wants_document(output, json):
        from sublet.errors import InvalidValue

        verb = context.invoked_subcommand
        raise InvalidValue("budget", "its form", f"said after the verb: sublet budget {verb} -o {form.get()}")


@budget_app.command()
def show(output: opt.OutputOption = opt.Output.TABLE, json: opt.Json = False) -> None:
    """Limits, spent, reserved, left, burn rate; and of every team, user and job with a budget of its own."""
    from sublet.api.client import connect

    client = connect()
    found, purses = client.get("/v1/budget"), client.get("/v1/budgets")["purses"]
    if opt.wants_document(output, json):
        print_document({**found, "purses": purses})
        return
    _print(found)
    _print_tree(purses)


@budget_app.command("set")
def set_limits(  # noqa: PLR0913 - one for each limit
    amount: Annotated[
        str | None,
        typer.Argument(metavar="[USD[/PERIOD]]", help="500/month, 50/week, 20/day, 500 in all, or none."),
    ] = None,
    team: Annotated[str, typer.Option(metavar="NAME", help="What this team may spend.")] = "",
    user: Annotated[str, typer.Option(metavar="NAME", help="What this user may spend.")] = "",
    job: Annotated[str, typer.Option(metavar="JOB", help="What this job may spend.")] = "",
    org: Annotated[bool, typer.Option("--org", help="What all may spend together.")] = False,
    burn: Annotated[str | None, typer.Option(metavar="USD/H", help="Never rent for more than this per hour.")] = None,
    average: Annotated[str | None, typer.Option(metavar="USD/H", help="Aim at this in the long run.")] = None,
    purse: Annotated[str | None, typer.Option(metavar="USD", help="Spend this much in all.")] = None,
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Change a limit; those that are left out stay. `sublet budget set --team vision 500/month`."""
    from sublet.api.client import connect
    from sublet.cli.parse.values import parse_money, parse_price
    from sublet.errors import InvalidValue

    whose = [(level, name) for level, name in (("team", team), ("user", user), ("job", job)) if name]
    whose += [("org", "")] if org else []
    if whose or amount is not None:
        if burn or average or purse:
            raise InvalidValue("--burn, --average, --purse", "given", "said in a call of their own: they are of all")
        _set_total(whose, amount, document=opt.wants_document(output, json))
        return
    body = {
        "burn_limit_usd_per_h": None if burn is None else parse_price("--burn", burn).usd_per_h,
        "average_usd_per_h": None if average is None else parse_price("--average", average).usd_per_h,
        "purse_usd": None if purse is None else parse_money("--purse", purse).usd,
    }
    given = {name: value for name, value in body.items() if value is not None}
    if not given:
        allowed = "at least one of --burn, --average and --purse, or an amount with --team, --user, --job or --org"
        raise InvalidValue("limits", None, allowed)
    _tell(connect().post("/v1/budget", given), document=opt.wants_document(output, json))


def _set_total(whose: list[tuple[str, str]], amount: str | None, *, document: bool) -> None:
    from sublet.api.client import connect
    from sublet.cli.parse.values import parse_total
    from sublet.errors import InvalidValue

    if len(whose) != 1:
        given = ", ".join(f"--{level}" for level, _ in whose) or None
        raise InvalidValue("whose budget", given, "one of --team NAME, --user NAME, --job JOB and --org")
    (level, name), *_ = whose
    if amount is None:
        next_step = f"sublet budget set --{level}{f' {name}' if name else ''} 500/month"
        raise InvalidValue("amount", None, f"USD, USD/day, USD/week, USD/month or none, as in: {next_step}")
    usd, period = parse_total("amount", amount)
    found = connect().post("/v1/budgets", {"level": level, "name": name, "amount_usd": usd, "period": period})
    if document:
        print_document(found)
    else:
        _print_tree(found["purses"])


@budget_app.command("top-up")
def top_up(
    usd: Annotated[str, typer.Argument(metavar="USD", help="Such as 5, or USD 5.")],
    job: Annotated[
        str, typer.Option("--job", metavar="JOB", help="Into the budget of this job, instead of the total budget.")
    ] = "",
    output: opt.OutputOption = opt.Output.TABLE,
    json: opt.Json = False,
) -> None:
    """Put more into the budget of all, or of one job; what was stopped at its limit goes on."""
    from sublet.api.client import connect, segment
    from sublet.cli.parse.values import parse_money
    from sublet.cli.print.figures import money

    body = {"usd": parse_money("USD", usd).usd}
    if job:
        told = connect().post(f"/v1/jobs/{segment(job)}/top-up", body)
        if opt.wants_document(output, json):
            print_document(told)
        else:
            spent = f"may spend {money(told['purse_usd'])}, {money(told['usd_total'])} of it is spent"
            typer.echo(f"job {told['id']} ({told['name']}) {spent}; it is {told['phase']}: {told['reason']}")
        return
    found = connect().post("/v1/budget/top-up", body)
    _tell(found, document=opt.wants_document(output, json))


def _tell(found: dict[str, Any], *, document: bool) -> None:
    if document:
        print_document(found)
    else:
        _print(found)


def _print(found: dict[str, Any]) -> None:
    from sublet.cli.print.figures import money

    def limit(value: float | None, unit: str = "") -> str:
        return "no limit" if value is None else money(value) + unit

    typer.echo(f"burn limit  {limit(found['burn_limit_usd_per_h'], '/h')}, now {money(found['burn_usd_per_h'])}/h")
    if found["average_usd_per_h"] is not None:
        typer.echo(f"average     {money(found['average_usd_per_h'])}/h in the long run")
    typer.echo(f"in all      {limit(found['purse_usd'])}")
    typer.echo(f"spent       {money(found['spent_usd'])}, and {money(found['reserved_usd'])} reserved to stop safely")
    if found["left_usd"] is not None:
        typer.echo(f"left        {money(found['left_usd'])}")
    if usd := found.get("unattended_usd"):  # not told by older controllers
        beyond = f"{money(usd)} beyond the budget, until its nodes end"
        typer.echo(f"            a controller that is lost now may cost up to {beyond}")
    if found["exhausted"]:
        typer.echo("nothing more is rented\nnext: sublet budget top-up USD")


def _print_tree(purses: list[dict[str, Any]]) -> None:
    """A row for each level; none where there is but the organisation without periods."""
    from sublet.cli.print.figures import money
    from sublet.cli.print.tables import print_table

    if len(purses) == 1 and purses[0]["period"] is None:
        return
    rows = []
    for each in purses:
        limit = "-" if each["limit_usd"] is None else money(each["limit_usd"])
        period = f" a {each['period']}" if each["period"] else ""
        period += " by its file" if each.get("by_file") else ""
        left = "-" if each["left_usd"] is None else money(each["left_usd"])
        rows.append(
            [
                f"{'  ' * each['depth']}{each['level']} {each['name']}".rstrip(),
                limit + period,
                money(each["spent_usd"]),
                money(each["reserved_usd"]),
                left + (", spent" if each["exhausted"] else ""),
                each["ends"] or "-",
            ]
        )
    print_table(["who", "may spend", "spent", "reserved", "left", "until"], rows, words=(0, 1, 4, 5))
