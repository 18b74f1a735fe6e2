"""``kinetoscope completion``: the script with which a shell completes verbs and their options."""

from __future__ import annotations

import argparse

SHELLS = ("bash", "zsh", "fish")
EPILOG = """\
to have it in every shell:
  bash   kinetoscope completion bash >> ~/.bashrc
  zsh    kinetoscope completion zsh >> ~/.zshrc
  fish   kinetoscope completion fish > ~/.config/fish/completions/kinetoscope.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell that reads it")


def main(arguments: argparse.Namespace) -> int:
    write = {"bash": _bash, "zsh": _zsh, "fish": _fish}[arguments.shell]
    print(write(_words()), end="")
    return 0


Words = dict[str, list[tuple[str, tuple[str, ...]]]]


def _words() -> Words:
    from kinetoscope.cli import VERBS, parser_of

    return {
        verb: [
            (option, tuple(map(str, action.choices or ())))
            for action in parser_of(verb)._actions  # pyright: ignore[reportPrivateUsage]
            for option in action.option_strings
        ]
        for verb in VERBS
    }


def _bash(words: Words) -> str:
    verbs = "\n".join(
        f"    {verb}) words='{' '.join(option for option, _ in options)}' ;;"
        for verb, options in words.items()
        if verb != "completion"
    )
    choices = sorted({(option, known) for options in words.values() for option, known in options if known})
    after = "\n".join(f"    {option}) words='{' '.join(known)}' ;;" for option, known in choices)
    return f"""\
_kinetoscope() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}" words=''
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    COMPREPLY=($(compgen -W '{" ".join(words)} --help --version' -- "$word"))
    return
  fi
  case "$before" in
{after}
  esac
  if [ -n "$words" ]; then
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{verbs}
    completion) words='{" ".join(SHELLS)}' ;;
  esac
  case "$word" in
    -*) COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
    *) [ "${{COMP_WORDS[1]}}" = completion ] && COMPREPLY=($(compgen -W "$words" -- "$word")) ;;
  esac
}}
complete -o default -o bashdefault -F _kinetoscope kinetoscope
"""


def _zsh(words: Words) -> str:
    """Bash's, which zsh reads as well."""
    return f"autoload -U +X compinit && compinit\nautoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: Words) -> str:
    from kinetoscope.cli import VERBS

    none, lines = "__fish_use_subcommand", list[str]()
    for verb, summary in VERBS.items():
        lines.append(f"complete -c kinetoscope -n {none} -a {verb} -d {_quoted(summary)}")
    for verb, options in words.items():
        for option, known in options:
            flag = f"-l {option[2:]}" if option.startswith("--") else f"-s {option[1:]}"
            given = f" -x -a {_quoted(' '.join(known))}" if known else ""
            lines.append(f"complete -c kinetoscope -n '__fish_seen_subcommand_from {verb}' {flag}{given}")
    lines.append(
        "complete -c kinetoscope -n '__fish_seen_subcommand_from completion' -f "
        f"-a {_quoted(' '.join(SHELLS))}"
    )
    return "\n".join(lines) + "\n"


def _quoted(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
