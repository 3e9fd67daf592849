"""What type checkers see of the package, whose names are loaded when they are first used."""

from teola_plugin.api import optimize as optimize
from teola_plugin.api import optimized as optimized
from teola_plugin.callbacks import TeolaCallbackHandler as TeolaCallbackHandler
from teola_plugin.comparison import compare as compare
from teola_plugin.effects import pure as pure
from teola_plugin.effects import reads as reads
from teola_plugin.effects import writes as writes
from teola_plugin.explanation import explain as explain

__version__: str
