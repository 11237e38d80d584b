"""Data sets of groups: reading, splitting, and packing into blocks of one static shape."""

from ramify._data._blocks import block_shape as block_shape
from ramify._data._blocks import minibatches as minibatches
from ramify._data._blocks import partition as partition
from ramify._data._blocks import rows_needed as rows_needed
from ramify._data._blocks import sequential as sequential
from ramify._data._groups import Groups as Groups
from ramify._data._packing import Resident as Resident
from ramify._data._packing import cut as cut
from ramify._data._packing import everything as everything
from ramify._data._packing import filled as filled
from ramify._data._packing import lay_out as lay_out
from ramify._data._packing import to_device as to_device
from ramify._data._packing import whole as whole
