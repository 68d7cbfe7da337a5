"""How the help pages are laid out."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cyclopts.help import HelpPanel
    from rich.console import Console, ConsoleOptions


class HelpPages:
    """The layout of cyclopts, with the description of each option as one paragraph.

    Plain text keeps the line breaks of the docstring, which fall anywhere in a narrower panel; the formats
    that do reflow bring a Markdown or reStructuredText parser along, and double the time that help takes.
    The layout itself is imported when a page is drawn, so that no command waits for it.
    """

    def __call__(self, console: "Console", options: "ConsoleOptions", panel: "HelpPanel") -> None:
        """Draw the panel of arguments, options or commands."""
        from cyclopts.help import InlineText
        from cyclopts.help.formatters import DefaultFormatter
        from rich.text import Text

        for entry in panel.entries:
            text = entry.description
            if isinstance(text, InlineText) and isinstance(text.primary_renderable, Text):
                text.primary_renderable = Text(" ".join(text.primary_renderable.plain.split()))
        DefaultFormatter()(console, options, panel)

    def render_usage(self, console: "Console", options: "ConsoleOptions", usage: Any) -> None:
        """Draw the line that starts with "Usage:"."""
        from cyclopts.help.formatters import DefaultFormatter

        DefaultFormatter().render_usage(console, options, usage)
