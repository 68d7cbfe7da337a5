"""Contrast by computation: relative luminance and contrast ratio of WCAG 2.2."""


def _channels(colour):
    return [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]


def _luminance(channels):
    def linear(channel):
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = map(linear, channels)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one, other):
    """Compare two colours such as "#1f2328", or channels from 0 to 1: 1 if equal, 21 for black on white."""
    given = (_channels(each) if isinstance(each, str) else each for each in (one, other))
    light, dark = sorted(map(_luminance, given), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def blend(colour, paper, opacity):
    """Lay a colour over a paper."""
    pairs = zip(_channels(colour), _channels(paper), strict=True)
    return [opacity * above + (1 - opacity) * below for above, below in pairs]
