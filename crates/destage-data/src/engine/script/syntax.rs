//! What a script may consist of: a part of Lua 5.1, of which it is known how long it takes.

/// A script that is taken.
#[derive(Debug)]
pub(in crate::engine) struct Program {
    pub(super) body: Vec<Statement>,
    /// Places for local variables.
    pub(super) locals: usize,
}

/// One statement.
#[derive(Debug)]
pub(super) enum Statement {
    /// `local a, b = x, y`, and `a, b = x, y`: places and values, as many as there are of either.
    Set(Vec<usize>, Vec<Expression>),
    /// A call whose value nobody wants.
    Call(Expression),
    /// Conditions with what is done, the first that holds; and what is done if none does.
    If(Vec<(Expression, Vec<Self>)>, Vec<Self>),
    /// `for i = first, last, step do`
    Count {
        place: usize,
        first: Expression,
        last: Expression,
        step: Option<Expression>,
        body: Vec<Self>,
    },
    /// `for i, value in ipairs(list) do`: the second place may be missing.
    Each {
        places: (usize, Option<usize>),
        list: Expression,
        body: Vec<Self>,
    },
    /// `do ... end`
    Block(Vec<Self>),
    Break,
    Return(Option<Expression>),
}

/// One expression.
#[derive(Debug)]
pub(super) enum Expression {
    Nil,
    Bool(bool),
    Number(f64),
    Text(Box<[u8]>),
    /// The keys of the call.
    Keys,
    /// Its other arguments.
    Arguments,
    Local(usize),
    Index(Box<Self>, Box<Self>),
    Not(Box<Self>),
    Minus(Box<Self>),
    Length(Box<Self>),
    And(Box<Self>, Box<Self>),
    Or(Box<Self>, Box<Self>),
    Binary(Operator, Box<Self>, Box<Self>),
    /// `{ a, b }`
    List(Vec<Self>),
    /// A call, with its line, from 1.
    Call(Function, Vec<Self>, u32),
}

/// What stands between two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operator {
    Add,
    Subtract,
    Multiply,
    Divide,
    Modulo,
    Power,
    Join,
    Equal,
    Unequal,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// A function that scripts may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Function {
    /// `redis.call`
    Command,
    /// `redis.pcall`
    TriedCommand,
    /// `redis.status_reply`
    StatusReply,
    /// `redis.error_reply`
    ErrorReply,
    /// `redis.replicate_commands`
    ReplicateCommands,
    ToNumber,
    ToString,
    Type,
    Abs,
    Ceil,
    Floor,
    Max,
    Min,
    /// `string.len`
    Len,
    /// `string.sub`
    Sub,
}

impl Function {
    /// By its name, with the name of its table.
    pub(super) fn find(table: &str, name: &str) -> Option<Self> {
        Some(match (table, name) {
            ("redis" | "server", "call") => Self::Command,
            ("redis" | "server", "pcall") => Self::TriedCommand,
            ("redis" | "server", "status_reply") => Self::StatusReply,
            ("redis" | "server", "error_reply") => Self::ErrorReply,
            ("redis" | "server", "replicate_commands") => Self::ReplicateCommands,
            ("", "tonumber") => Self::ToNumber,
            ("", "tostring") => Self::ToString,
            ("", "type") => Self::Type,
            ("math", "abs") => Self::Abs,
            ("math", "ceil") => Self::Ceil,
            ("math", "floor") => Self::Floor,
            ("math", "max") => Self::Max,
            ("math", "min") => Self::Min,
            ("string", "len") => Self::Len,
            ("string", "sub") => Self::Sub,
            _ => return None,
        })
    }

    /// The least and the greatest number of arguments.
    pub(super) fn arity(self) -> (usize, usize) {
        match self {
            Self::Command | Self::TriedCommand | Self::Max | Self::Min => (1, usize::MAX),
            Self::ReplicateCommands => (0, 0),
            Self::Sub => (2, 3),
            _ => (1, 1),
        }
    }
}
