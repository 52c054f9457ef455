//! From the text of a script to what it does, if it stays within what is taken. Time and memory grow with the text, whose
//! length is bounded, and so is the depth.

use super::lex::{Lexer, Token};
use super::syntax::{Expression, Function, Operator, Program, Statement};
use crate::engine::command::{Category, SPECS, Spec, Verb};

/// The longest script, bytes.
pub(in crate::engine) const TEXT_BYTES_MAX: usize = 16 << 10;
/// How deep blocks and expressions may lie in each other. What performs them goes as deep.
const DEPTH_MAX: usize = 30;
/// As many as Lua has.
const LOCALS_MAX: usize = 200;
/// A unary operator binds stronger than all but the power.
const UNARY: u8 = 8;
/// Commands of scripts that are none of clients.
pub(super) const TIME: &str = "time";
pub(super) const RENAME: &str = "rename";

/// Reads a script.
///
/// # Errors
/// What of it is not taken, and in which line.
pub(in crate::engine) fn parse(text: &[u8]) -> Result<Program, String> {
    if text.len() > TEXT_BYTES_MAX {
        return Err(format!("it has more than {TEXT_BYTES_MAX} bytes"));
    }
    let mut parser = Parser {
        lexer: Lexer::new(text),
        token: Token::End,
        scope: Vec::new(),
        locals: 0,
        depth: 0,
        height: 0,
        loops: 0,
    };
    let body = parser.advance().and_then(|()| parser.block()).and_then(|body| {
        if parser.token == Token::End { Ok(body) } else { Err(parser.unexpected()) }
    });
    match body {
        Ok(body) => Ok(Program { body, locals: parser.locals }),
        Err(what) => Err(format!("{what}, in line {}", parser.lexer.line)),
    }
}

/// The command that a script may call by this name.
pub(super) fn command(name: &[u8]) -> Option<&'static Spec> {
    let spec = SPECS.iter().find(|spec| name.eq_ignore_ascii_case(spec.name.as_bytes()))?;
    let is_taken = spec.category != Category::Server
        && !spec.verb.is_of_sets()
        && !matches!(spec.verb, Verb::Eval | Verb::EvalSha);
    is_taken.then_some(spec)
}

struct Parser<'s> {
    lexer: Lexer<'s>,
    token: Token,
    /// The local variables in sight; the place of each is its number.
    scope: Vec<String>,
    /// Most that were in sight at once.
    locals: usize,
    depth: usize,
    /// How many lie in each other within the expression that was read last.
    height: usize,
    /// Loops around.
    loops: usize,
}

type Parsed<T> = Result<T, String>;

impl Parser<'_> {
    fn advance(&mut self) -> Parsed<()> {
        self.token = self.lexer.next()?;
        Ok(())
    }

    fn unexpected(&self) -> String {
        match &self.token {
            Token::Name(name) => format!("'{name}'"),
            Token::Sign(sign) => format!("'{sign}'"),
            Token::Number(_) => "a number where none is taken".to_owned(),
            Token::Text(_) => "a text where none is taken".to_owned(),
            Token::End => "its end is missing".to_owned(),
        }
    }

    fn is(&self, sign: &str) -> bool {
        matches!(&self.token, Token::Sign(other) if *other == sign)
    }

    /// Passes a word if it is the next one.
    fn accept(&mut self, sign: &str) -> Parsed<bool> {
        let is_next = self.is(sign);
        if is_next {
            self.advance()?;
        }
        Ok(is_next)
    }

    fn expect(&mut self, sign: &str) -> Parsed<()> {
        if self.accept(sign)? {
            return Ok(());
        }
        Err(format!("{} where '{sign}' belongs", self.unexpected()))
    }

    fn name(&mut self) -> Parsed<String> {
        let Token::Name(name) = &mut self.token else { return Err(self.unexpected()) };
        let name = std::mem::take(name);
        self.advance()?;
        Ok(name)
    }

    fn declare(&mut self, name: String) -> Parsed<usize> {
        if self.scope.len() == LOCALS_MAX {
            return Err(format!("more than {LOCALS_MAX} local variables"));
        }
        self.scope.push(name);
        self.locals = self.locals.max(self.scope.len());
        Ok(self.scope.len() - 1)
    }

    fn find(&self, name: &str) -> Option<usize> {
        self.scope.iter().rposition(|other| other == name)
    }

    /// What is being read lies around so many in each other. Of what stands in a row, each lies around all that stands before
    /// it.
    fn lies_around(&mut self, height: usize) -> Parsed<()> {
        if self.depth + height <= DEPTH_MAX {
            self.height = height;
            return Ok(());
        }
        Err(format!("what lies in more than {DEPTH_MAX} others"))
    }

    /// Reads what lies deeper.
    fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.lies_around(1)?;
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    /// Statements up to the word that ends them.
    fn block(&mut self) -> Parsed<Vec<Statement>> {
        self.deeper(|parser| {
            let outer = parser.scope.len();
            let mut body = Vec::new();
            loop {
                if parser.accept(";")? {
                    continue;
                }
                let is_end = ["end", "else", "elseif"].iter().any(|word| parser.is(word));
                if is_end || parser.token == Token::End {
                    break;
                }
                let statement = parser.statement()?;
                let is_last = matches!(statement, Statement::Return(_) | Statement::Break);
                body.push(statement);
                if is_last {
                    parser.accept(";")?;
                    break;
                }
            }
            parser.scope.truncate(outer);
            Ok(body)
        })
    }

    fn statement(&mut self) -> Parsed<Statement> {
        let Token::Sign(word) = self.token else { return self.call_or_set() };
        match word {
            "local" => {
                self.advance()?;
                self.local()
            }
            "if" => {
                self.advance()?;
                self.condition()
            }
            "for" => {
                self.advance()?;
                self.repetition()
            }
            "do" => {
                self.advance()?;
                let body = self.block()?;
                self.expect("end")?;
                Ok(Statement::Block(body))
            }
            "break" if self.loops > 0 => {
                self.advance()?;
                Ok(Statement::Break)
            }
            "return" => {
                self.advance()?;
                let is_bare = ["end", "else", "elseif", ";"].iter().any(|word| self.is(word));
                if is_bare || self.token == Token::End {
                    return Ok(Statement::Return(None));
                }
                Ok(Statement::Return(Some(self.expression(0)?)))
            }
            _ => self.call_or_set(),
        }
    }

    fn local(&mut self) -> Parsed<Statement> {
        let mut names = vec![self.name()?];
        while self.accept(",")? {
            names.push(self.name()?);
        }
        let values = if self.accept("=")? { self.expressions()? } else { Vec::new() };
        let places = names.into_iter().map(|name| self.declare(name)).collect::<Parsed<_>>()?;
        Ok(Statement::Set(places, values))
    }

    fn condition(&mut self) -> Parsed<Statement> {
        let mut cases = Vec::new();
        loop {
            let condition = self.expression(0)?;
            self.expect("then")?;
            cases.push((condition, self.block()?));
            if self.accept("elseif")? {
                continue;
            }
            let otherwise = if self.accept("else")? { self.block()? } else { Vec::new() };
            self.expect("end")?;
            return Ok(Statement::If(cases, otherwise));
        }
    }

    fn repetition(&mut self) -> Parsed<Statement> {
        let outer = self.scope.len();
        let first = self.name()?;
        if self.accept("=")? {
            let start = self.expression(0)?;
            self.expect(",")?;
            let last = self.expression(0)?;
            let step = if self.accept(",")? { Some(self.expression(0)?) } else { None };
            let place = self.declare(first)?;
            let body = self.repeated(outer)?;
            return Ok(Statement::Count { place, first: start, last, step, body });
        }
        let second = if self.accept(",")? { Some(self.name()?) } else { None };
        self.expect("in")?;
        match self.name()?.as_str() {
            "ipairs" if self.find("ipairs").is_none() => {}
            other => return Err(format!("'{other}' where 'ipairs' belongs")),
        }
        self.expect("(")?;
        let list = self.expression(0)?;
        self.expect(")")?;
        let place = self.declare(first)?;
        let second = second.map(|name| self.declare(name)).transpose()?;
        let body = self.repeated(outer)?;
        Ok(Statement::Each { places: (place, second), list, body })
    }

    /// The body of a loop, whose variables end with it.
    fn repeated(&mut self, outer: usize) -> Parsed<Vec<Statement>> {
        self.expect("do")?;
        self.loops += 1;
        let body = self.block()?;
        self.loops -= 1;
        self.expect("end")?;
        self.scope.truncate(outer);
        Ok(body)
    }

    /// A call, or values for local variables.
    fn call_or_set(&mut self) -> Parsed<Statement> {
        let first = self.suffixed()?;
        if matches!(first, Expression::Call(..)) {
            return Ok(Statement::Call(first));
        }
        let mut targets = vec![first];
        while self.accept(",")? {
            targets.push(self.suffixed()?);
        }
        self.expect("=")?;
        let place = |target: &Expression| match target {
            Expression::Local(place) => Ok(*place),
            _ => Err("a value for what is no local variable".to_owned()),
        };
        let places = targets.iter().map(place).collect::<Parsed<_>>()?;
        Ok(Statement::Set(places, self.expressions()?))
    }

    fn expressions(&mut self) -> Parsed<Vec<Expression>> {
        let mut expressions = vec![self.expression(0)?];
        let mut height = self.height;
        while self.accept(",")? {
            expressions.push(self.expression(0)?);
            height = height.max(self.height);
        }
        self.height = height;
        Ok(expressions)
    }

    /// An expression whose operators bind stronger than that.
    fn expression(&mut self, strength: u8) -> Parsed<Expression> {
        self.deeper(|parser| {
            let mut left = parser.operand()?;
            while let Token::Sign(sign) = parser.token
                && let Some((binds_left, binds_right)) = strengths(sign)
                && binds_left > strength
            {
                let height = parser.height;
                parser.advance()?;
                let right = Box::new(parser.expression(binds_right)?);
                parser.lies_around(height.max(parser.height) + 1)?;
                let left_side = Box::new(left);
                left = match sign {
                    "and" => Expression::And(left_side, right),
                    "or" => Expression::Or(left_side, right),
                    _ => match operator(sign) {
                        Some(operator) => Expression::Binary(operator, left_side, right),
                        None => return Err(format!("'{sign}'")),
                    },
                };
            }
            Ok(left)
        })
    }

    fn operand(&mut self) -> Parsed<Expression> {
        let make: fn(Box<Expression>) -> Expression = match self.token {
            Token::Sign("not") => Expression::Not,
            Token::Sign("-") => Expression::Minus,
            Token::Sign("#") => Expression::Length,
            _ => return self.suffixed(),
        };
        self.advance()?;
        let inner = Box::new(self.expression(UNARY)?);
        self.lies_around(self.height + 1)?;
        Ok(make(inner))
    }

    /// A value, and what is looked up in it.
    fn suffixed(&mut self) -> Parsed<Expression> {
        let mut value = self.simple()?;
        loop {
            let height = std::mem::take(&mut self.height);
            let index = if self.accept("[")? {
                let index = self.expression(0)?;
                self.expect("]")?;
                index
            } else if self.accept(".")? {
                Expression::Text(self.name()?.into_bytes().into())
            } else if matches!(self.token, Token::Sign("(" | ":")) {
                return Err(self.unexpected());
            } else {
                self.height = height;
                return Ok(value);
            };
            self.lies_around(height.max(self.height) + 1)?;
            value = Expression::Index(Box::new(value), Box::new(index));
        }
    }

    fn simple(&mut self) -> Parsed<Expression> {
        self.height = 0;
        let value = match std::mem::replace(&mut self.token, Token::End) {
            Token::Number(number) => Expression::Number(number),
            Token::Text(text) => Expression::Text(text),
            Token::Sign("nil") => Expression::Nil,
            Token::Sign("true") => Expression::Bool(true),
            Token::Sign("false") => Expression::Bool(false),
            Token::Sign("(") => {
                self.advance()?;
                let inner = self.expression(0)?;
                self.expect(")")?;
                return Ok(inner);
            }
            Token::Sign("{") => {
                self.advance()?;
                return self.list();
            }
            Token::Name(name) => {
                self.advance()?;
                return self.named(&name);
            }
            other => {
                self.token = other;
                return Err(self.unexpected());
            }
        };
        self.advance()?;
        Ok(value)
    }

    fn list(&mut self) -> Parsed<Expression> {
        let (mut values, mut height) = (Vec::new(), 0);
        while !self.accept("}")? {
            if self.is("[") {
                return Err("a table with names".to_owned());
            }
            values.push(self.expression(0)?);
            height = height.max(self.height);
            if !self.accept(",")? && !self.accept(";")? {
                self.expect("}")?;
                break;
            }
        }
        self.lies_around(height + 1)?;
        Ok(Expression::List(values))
    }

    fn named(&mut self, name: &str) -> Parsed<Expression> {
        if let Some(place) = self.find(name) {
            return Ok(Expression::Local(place));
        }
        let (table, member) = match name {
            "KEYS" => return Ok(Expression::Keys),
            "ARGV" => return Ok(Expression::Arguments),
            "redis" | "server" | "math" | "string" => {
                self.expect(".")?;
                (name, self.name()?)
            }
            _ => ("", name.to_owned()),
        };
        let shown = || if table.is_empty() { member.clone() } else { format!("{table}.{member}") };
        let function = Function::find(table, &member).ok_or_else(|| format!("'{}'", shown()))?;
        let line = self.lexer.line;
        self.expect("(")?;
        let arguments = if self.accept(")")? {
            Vec::new()
        } else {
            let arguments = self.expressions()?;
            self.expect(")")?;
            arguments
        };
        let (least, most) = function.arity();
        if !(least..=most).contains(&arguments.len()) {
            return Err(format!("{} arguments of {}", arguments.len(), shown()));
        }
        if matches!(function, Function::Command | Function::TriedCommand) {
            check_command(&arguments)?;
        }
        self.lies_around(self.height + 1)?;
        Ok(Expression::Call(function, arguments, line))
    }
}

/// The command is named where it is called, and is one that scripts may call.
fn check_command(arguments: &[Expression]) -> Parsed<()> {
    let Some(Expression::Text(name)) = arguments.first() else {
        return Err("a command whose name is computed".to_owned());
    };
    let is_own = [TIME, RENAME].iter().any(|own| name.eq_ignore_ascii_case(own.as_bytes()));
    if is_own || command(name).is_some() {
        return Ok(());
    }
    Err(format!("the command '{}'", crate::key_text::show(name)))
}

/// How strong an operator binds what stands before and behind it, as in Lua.
fn strengths(sign: &str) -> Option<(u8, u8)> {
    Some(match sign {
        "or" => (1, 1),
        "and" => (2, 2),
        "==" | "~=" | "<" | "<=" | ">" | ">=" => (3, 3),
        ".." => (5, 4),
        "+" | "-" => (6, 6),
        "*" | "/" | "%" => (7, 7),
        "^" => (10, 9),
        _ => return None,
    })
}

fn operator(sign: &str) -> Option<Operator> {
    Some(match sign {
        "+" => Operator::Add,
        "-" => Operator::Subtract,
        "*" => Operator::Multiply,
        "/" => Operator::Divide,
        "%" => Operator::Modulo,
        "^" => Operator::Power,
        ".." => Operator::Join,
        "==" => Operator::Equal,
        "~=" => Operator::Unequal,
        "<" => Operator::Less,
        "<=" => Operator::LessOrEqual,
        ">" => Operator::Greater,
        ">=" => Operator::GreaterOrEqual,
        _ => return None,
    })
}
