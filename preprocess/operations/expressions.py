"""A small language over Arrow's row-wise compute functions: a Python expression, parsed and never run as Python.

Names are columns (`col("odd name")` for others), `a.b` is a field of a struct and `a[0]` an item of a list. Functions
are those of `pyarrow.compute` that look at one row at a time, and `cast(value, "type")`. A pattern with a backslash
wants an r before its quotes. Arithmetic is checked: overflow and division by zero are errors. `/` of integers is exact
division, `//` and `%` round down, `+` also joins texts. What meets a null is null, but for `and` and `or` where the
other side decides, and `x is None`.
"""

import ast
import difflib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, reduce
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from dataplane.errors import InputError
from preprocess.operations.refusals import first_refused, reason_of, shown
from preprocess.type_names import parse_type

_MAX_CHARACTERS = 10_000
_NOT_ROW_WISE = {"random"}  # a scalar function to Arrow, but not one of the row

Value: TypeAlias = pa.Array | pa.Scalar


@dataclass(frozen=True, slots=True)
class Expression:
    """A parsed expression. Raises ValueError if the text is none."""

    text: str

    def __post_init__(self) -> None:
        try:
            _check(_parsed(self.text))
        except RecursionError:
            raise ValueError(f"{shown(self.text)} is nested too deeply") from None

    def bind(self, schema: pa.Schema) -> "BoundExpression":
        """Raises ValueError if rows of the schema lack a column, or have types that do not go with the functions."""
        tree = _parsed(self.text)
        names = _columns_of(tree)
        for name in names:
            if name not in schema.names:
                raise ValueError(
                    f"{self.text!r}: there is no column {name!r}; the columns are {', '.join(schema.names) or 'none'}"
                )
        empty = pa.RecordBatch.from_arrays([pa.nulls(0, field.type) for field in schema], schema=schema)
        try:
            kind = _evaluated(tree, empty).type
        except (pa.ArrowException, TypeError, KeyError, ValueError, OverflowError, RecursionError) as error:
            raise ValueError(f"{shown(self.text)}: {reason_of(error)}") from None
        return BoundExpression(self.text, tree, names, kind)


@dataclass(frozen=True, slots=True)
class BoundExpression:
    """An expression over rows of a schema that it goes with."""

    text: str
    _tree: ast.expr
    _columns: tuple[str, ...]
    type: pa.DataType
    """Of its values."""

    def __call__(self, batch: pa.RecordBatch) -> pa.Array:
        """One value for each row. Raises InputError naming the row and its values where a function refuses one."""
        try:
            return _evaluated(self._tree, batch)
        except (pa.ArrowException, OverflowError):
            row, reason = first_refused(batch, lambda rows: _evaluated(self._tree, rows))
            values = ", ".join(f"{name} = {shown(batch.column(name)[row].as_py())}" for name in self._columns)
            raise InputError(
                f"expression {self.text!r} fails in row {row} of the batch, where {values}: {reason}"
            ) from None


@cache
def row_wise_functions() -> frozenset[str]:
    """The names of the functions that an expression may call."""
    names = (name for name in pc.list_functions() if pc.get_function(name).kind == "scalar")
    return frozenset({name for name in names if _wrapper(name) is not None} - _NOT_ROW_WISE)


def _wrapper(name: str) -> Any:  # Any: one of pyarrow's generated functions
    return getattr(pc, name, None) or getattr(pc, f"{name}_", None)


def _parsed(text: str) -> ast.expr:
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"an expression has at most {_MAX_CHARACTERS} characters, got {len(text)}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # "\\d" without an r before it
            return ast.parse(text.strip(), mode="eval").body
    except SyntaxError as error:
        raise ValueError(f"{shown(text)} is not an expression: {error.msg} at character {error.offset}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{shown(text)} is not an expression: {reason_of(error)}") from None


_ARITHMETIC: dict[type[ast.operator], Callable[[Value, Value], Value]] = {
    ast.Sub: pc.subtract_checked,
    ast.Mult: pc.multiply_checked,
    ast.Pow: pc.power_checked,
    ast.Add: lambda left, right: _joined(left, right) if _is_text(left.type) else pc.add_checked(left, right),
    ast.Div: lambda left, right: _divided(left, right),
    ast.FloorDiv: lambda left, right: _floor_divided(left, right),
    ast.Mod: lambda left, right: pc.modulo_checked(left, right),
}
_COMPARISONS: dict[type[ast.cmpop], Callable[[Value, Value], Value]] = {
    ast.Eq: pc.equal,
    ast.NotEq: pc.not_equal,
    ast.Lt: pc.less,
    ast.LtE: pc.less_equal,
    ast.Gt: pc.greater,
    ast.GtE: pc.greater_equal,
}
_UNARY: dict[type[ast.unaryop], Callable[[Value], Value]] = {ast.USub: pc.negate_checked, ast.Not: pc.invert}
_BOOLEAN: dict[type[ast.boolop], Callable[[Value, Value], Value]] = {ast.And: pc.and_kleene, ast.Or: pc.or_kleene}


def _check(node: ast.expr) -> None:
    """Raises ValueError for anything but the language; nothing that passes can reach beyond rows and functions."""
    match node:
        case ast.Name() | ast.Constant(value=bool() | int() | float() | str() | bytes() | None):
            pass
        case ast.Attribute(value=inner):
            _check(inner)
        case ast.Subscript(value=inner, slice=ast.Constant(value=int() | str())):
            _check(inner)
        case ast.UnaryOp(op=op, operand=inner) if type(op) in _UNARY:
            _check(inner)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _ARITHMETIC:
            _check(left)
            _check(right)
        case ast.BoolOp(values=parts):
            for part in parts:
                _check(part)
        case ast.IfExp(test=test, body=body, orelse=orelse):
            for part in (test, body, orelse):
                _check(part)
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            _check(left)
            for comparison, right in zip(ops, comparators, strict=True):
                _check_comparison(comparison, right)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            _check_call(name, arguments, keywords)
        case _:
            raise ValueError(
                f"{ast.unparse(node)[:80]!r} cannot be in an expression; it is made of columns, numbers, texts, "
                "+ - * / // % **, comparisons, and, or, not, in, is None, if-else and calls of functions"
            )


def _check_comparison(op: ast.cmpop, right: ast.expr) -> None:
    if isinstance(op, ast.In | ast.NotIn):
        _literal(right)
    elif isinstance(op, ast.Is | ast.IsNot):
        if not (isinstance(right, ast.Constant) and right.value is None):
            raise ValueError(f"`is` compares with None alone, got {ast.unparse(right)!r}; use == ")
    elif isinstance(right, ast.Constant) and right.value is None:
        raise ValueError("no value equals None, not even null; write `is None` or `is not None`")
    else:
        _check(right)


def _check_call(name: str, arguments: list[ast.expr], keywords: list[ast.keyword]) -> None:
    if name == "col":
        if not (len(arguments) == 1 and isinstance(arguments[0], ast.Constant) and type(arguments[0].value) is str):
            raise ValueError('col takes the name of a column: col("odd name")')
        return
    if name != "cast" and name not in row_wise_functions():
        raise ValueError(f"there is no function {name!r} that looks at one row at a time{_nearest(name)}")
    num_values = _num_values(name, arguments)
    for argument in arguments[:num_values]:
        _check(argument)
    for option in arguments[num_values:]:
        _literal(option)
    for keyword in keywords:
        if keyword.arg in (None, "options", "memory_pool"):
            raise ValueError(f"{name}: the argument {keyword.arg or '**'!r} cannot be given in an expression")
        _literal(keyword.value)
    if name == "cast":
        target = [*arguments[1:], *(keyword.value for keyword in keywords)]
        if len(arguments) < 1 or len(target) != 1 or type(_literal(target[0])) is not str:
            raise ValueError('cast takes a value and the name of a type: cast(n, "int64")')
        parse_type(_literal(target[0]))


def _nearest(name: str) -> str:
    near = difflib.get_close_matches(name, row_wise_functions(), n=1)
    return f"; did you mean {near[0]!r}?" if near else "; pyarrow.compute lists them as scalar functions"


def _num_values(name: str, arguments: list[ast.expr]) -> int:
    """How many of the arguments by position are values of the row; options follow."""
    arity = 1 if name == "cast" else pc.get_function(name).arity
    return len(arguments) if arity is Ellipsis else min(arity, len(arguments))


def _literal(node: ast.expr) -> Any:  # Any: a constant, or a list of them
    try:
        value = ast.literal_eval(node)
    except (ValueError, TypeError):
        raise ValueError(f"{ast.unparse(node)[:80]!r} must be a constant, or a list of constants") from None
    return list(value) if isinstance(value, tuple | set) else value


def _columns_of(tree: ast.expr) -> tuple[str, ...]:
    functions = {node.func for node in ast.walk(tree) if isinstance(node, ast.Call)}
    names = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node not in functions]
    quoted = [
        _literal(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "col"
    ]
    return tuple(dict.fromkeys([*names, *quoted]))


def _evaluated(tree: ast.expr, batch: pa.RecordBatch) -> pa.Array:
    value = _value(tree, batch)
    if isinstance(value, pa.Scalar):
        return pa.repeat(value, batch.num_rows)
    if isinstance(value, pa.ChunkedArray):
        return value.combine_chunks()
    return value


def _value(node: ast.expr, batch: pa.RecordBatch) -> Value:
    """The value of an expression that `_check` let pass."""
    match node:
        case ast.Constant(value=constant):
            return pa.scalar(constant)
        case ast.Name(id=name):
            return batch.column(name)
        case ast.Attribute(value=inner, attr=field):
            return pc.struct_field(_value(inner, batch), field)
        case ast.Subscript(value=inner, slice=ast.Constant(value=place)):
            value = _value(inner, batch)
            return pc.struct_field(value, place) if isinstance(place, str) else pc.list_element(value, place)
        case ast.UnaryOp(op=op, operand=inner):
            return _UNARY[type(op)](_value(inner, batch))
        case ast.BinOp(left=left, op=operator, right=right):
            return _ARITHMETIC[type(operator)](_value(left, batch), _value(right, batch))
        case ast.BoolOp(op=joint, values=parts):
            return reduce(_BOOLEAN[type(joint)], (_value(part, batch) for part in parts))
        case ast.IfExp(test=test, body=body, orelse=orelse):
            return pc.if_else(*(_value(part, batch) for part in (test, body, orelse)))
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            pairs = zip([left, *comparators], ops, comparators, strict=False)
            return reduce(pc.and_kleene, (_compared(one, op, other, batch) for one, op, other in pairs))
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=keywords):
            return _called(name, arguments, {str(k.arg): _literal(k.value) for k in keywords}, batch)
    raise AssertionError(ast.dump(node))


def _compared(left: ast.expr, op: ast.cmpop, right: ast.expr, batch: pa.RecordBatch) -> Value:
    value = _value(left, batch)
    if isinstance(op, ast.Is):
        return pc.is_null(value)
    if isinstance(op, ast.IsNot):
        return pc.is_valid(value)
    if isinstance(op, ast.In | ast.NotIn):
        found = pc.is_in(value, value_set=pa.array(_literal(right)).cast(value.type))
        return found if isinstance(op, ast.In) else pc.invert(found)
    return _COMPARISONS[type(op)](value, _value(right, batch))


def _called(
    name: str,
    arguments: list[ast.expr],
    options: Mapping[str, Any],  # Any: constants
    batch: pa.RecordBatch,
) -> Value:
    if name == "col":
        return batch.column(_literal(arguments[0]))
    num_values = _num_values(name, arguments)
    values = [_value(argument, batch) for argument in arguments[:num_values]]
    others = [_literal(argument) for argument in arguments[num_values:]]
    if name == "cast":
        (target,) = [*others, *options.values()]
        return values[0].cast(parse_type(target))
    if isinstance(options.get("value_set"), list):
        options = {**options, "value_set": pa.array(options["value_set"]).cast(values[0].type)}
    return _wrapper(name)(*values, *others, **options)


def _is_text(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _joined(left: Value, right: Value) -> Value:
    large = pa.types.is_large_string(left.type) or pa.types.is_large_string(right.type)
    kind = pa.large_string() if large else pa.string()
    if not _is_text(right.type):
        raise TypeError(f"a text and a value of type {right.type} cannot be joined; cast it to string first")
    return pc.binary_join_element_wise(left.cast(kind), right.cast(kind), pa.scalar("", kind))


def _divided(left: Value, right: Value) -> Value:
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        left, right = left.cast(pa.float64()), right.cast(pa.float64())
    return pc.divide_checked(left, right)


def _floor_divided(left: Value, right: Value) -> Value:
    if pa.types.is_integer(left.type) and pa.types.is_integer(right.type):
        return pc.divide_checked(pc.subtract_checked(left, pc.modulo_checked(left, right)), right)
    return pc.floor(pc.divide_checked(left, right))
