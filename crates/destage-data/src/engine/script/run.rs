//! Performs a script: statement by statement, in one turn, upon plain keys that are all present.
//!
//! What its commands do is staged in a transaction, as between MULTI and EXEC. A script that ends with an error has done
//! nothing. Its steps and the bytes that it makes are bounded.

use super::budget::Budget;
use super::call::Call;
use super::syntax::{Expression, Operator, Statement};
use super::value::{Value, unfit};
use crate::engine::command::Category;
use crate::engine::perform::Context;
use crate::engine::prepared::{Prepared, Trouble};
use crate::resp::{Reply, ReplyError};
use destage_core::UnitId;
use std::collections::HashMap;

/// A script on its way.
pub(super) struct Run<'r, 'c> {
    pub(super) context: &'r mut Context<'c>,
    pub(super) call: &'r Call,
    /// The units of its keys.
    pub(super) units: HashMap<&'r [u8], UnitId>,
    pub(super) is_read_only: bool,
    /// Kept for its memory alone.
    pub(super) prepared: Prepared,
    locals: Vec<Value>,
    keys: Value,
    arguments: Value,
}

/// What comes after a statement.
enum Flow {
    On,
    Break,
    Return(Value),
}

impl Context<'_> {
    /// Performs a script; its reply is appended.
    pub(in crate::engine) fn perform_script(
        &mut self,
        prepared: &Prepared,
        units: &[UnitId],
        reply: &mut Reply<'_>,
    ) -> Result<(), Trouble> {
        let call = prepared.script.as_deref().expect("a script was read");
        let texts =
            |all: &[Box<[u8]>]| Value::list(all.iter().map(|text| Value::text(text)).collect());
        let mut run = Run {
            context: self,
            call,
            units: call.keys.iter().map(|key| &**key).zip(units.iter().copied()).collect(),
            is_read_only: prepared.category == Category::Read,
            prepared: Prepared::default(),
            locals: vec![Value::Nil; call.program.locals],
            keys: texts(&call.keys)?,
            arguments: texts(&call.arguments)?,
        };
        let value = match run.block(&call.program.body)? {
            Flow::Return(value) => value,
            Flow::On | Flow::Break => Value::Nil,
        };
        // What is written counts as well: a list may be in a list many times.
        let mut left = run.budget().steps().max(call.keys.len() + call.arguments.len() + 2);
        Ok(value.tell(reply, &mut left)?)
    }
}

impl<'r> Run<'r, '_> {
    /// What it may still do.
    pub(super) fn budget(&mut self) -> &mut Budget {
        &mut self.context.txn.budget
    }

    /// A value as a number, if it is one.
    ///
    /// # Errors
    /// Reading it is too much.
    pub(super) fn number(&mut self, value: &Value) -> Result<Option<f64>, Trouble> {
        if let Value::Text(text) = value {
            self.budget().weigh(text.len())?;
        }
        Ok(value.number())
    }

    fn block(&mut self, body: &'r [Statement]) -> Result<Flow, Trouble> {
        for statement in body {
            match self.statement(statement)? {
                Flow::On => {}
                end => return Ok(end),
            }
        }
        Ok(Flow::On)
    }

    fn statement(&mut self, statement: &'r Statement) -> Result<Flow, Trouble> {
        self.budget().step(1)?;
        match statement {
            Statement::Set(places, values) => {
                let mut computed = Vec::with_capacity(values.len());
                for value in values {
                    computed.push(self.value(value)?);
                }
                let values = computed.into_iter().chain(std::iter::repeat(Value::Nil));
                places.iter().zip(values).for_each(|(&place, value)| self.locals[place] = value);
            }
            Statement::Call(call) => drop(self.value(call)?),
            Statement::If(cases, otherwise) => {
                for (condition, body) in cases {
                    if self.value(condition)?.is_true() {
                        return self.block(body);
                    }
                }
                return self.block(otherwise);
            }
            Statement::Count { place, first, last, step, body } => {
                return self.count(*place, [Some(first), Some(last), step.as_ref()], body);
            }
            Statement::Each { places, list, body } => {
                let list = self.value(list)?;
                let Value::List(list) = &list else {
                    return Err(unfit("go through", &list).into());
                };
                for (number, value) in list.values.iter().enumerate() {
                    if matches!(value, Value::Nil) {
                        break;
                    }
                    self.locals[places.0] = Value::Number((number + 1) as f64);
                    if let Some(place) = places.1 {
                        self.locals[place] = value.clone();
                    }
                    self.budget().step(1)?;
                    match self.block(body)? {
                        Flow::On => {}
                        Flow::Break => break,
                        end @ Flow::Return(_) => return Ok(end),
                    }
                }
            }
            Statement::Block(body) => return self.block(body),
            Statement::Break => return Ok(Flow::Break),
            Statement::Return(None) => return Ok(Flow::Return(Value::Nil)),
            Statement::Return(Some(value)) => return Ok(Flow::Return(self.value(value)?)),
        }
        Ok(Flow::On)
    }

    fn count(
        &mut self,
        place: usize,
        bounds: [Option<&'r Expression>; 3],
        body: &'r [Statement],
    ) -> Result<Flow, Trouble> {
        let mut numbers = [1.0; 3];
        for (number, bound) in numbers.iter_mut().zip(bounds) {
            let Some(bound) = bound else { continue };
            let bound = self.value(bound)?;
            *number = self.number(&bound)?.ok_or_else(|| unfit("count with", &bound))?;
        }
        let [mut number, last, step] = numbers;
        while if step > 0.0 { number <= last } else { number >= last } {
            self.budget().step(1)?;
            self.locals[place] = Value::Number(number);
            match self.block(body)? {
                Flow::On => {}
                Flow::Break => break,
                end @ Flow::Return(_) => return Ok(end),
            }
            number += step;
        }
        Ok(Flow::On)
    }

    pub(super) fn value(&mut self, expression: &'r Expression) -> Result<Value, Trouble> {
        self.budget().step(1)?;
        Ok(match expression {
            Expression::Nil => Value::Nil,
            Expression::Bool(is_true) => Value::Bool(*is_true),
            Expression::Number(number) => Value::Number(*number),
            Expression::Text(text) => {
                self.budget().weigh(text.len())?;
                Value::text(text)
            }
            Expression::Keys => self.keys.clone(),
            Expression::Arguments => self.arguments.clone(),
            Expression::Local(place) => self.locals[*place].clone(),
            Expression::Index(value, index) => {
                let value = self.value(value)?;
                value.index(&self.value(index)?)?
            }
            Expression::Not(value) => Value::Bool(!self.value(value)?.is_true()),
            Expression::Minus(value) => {
                let value = self.value(value)?;
                let number = self.number(&value)?;
                Value::Number(-number.ok_or_else(|| unfit("perform arithmetic on", &value))?)
            }
            Expression::Length(value) => {
                let value = self.value(value)?;
                Value::Number(length(&value).ok_or_else(|| unfit("get length of", &value))? as f64)
            }
            Expression::And(first, second) => match self.value(first)? {
                value if value.is_true() => self.value(second)?,
                value => value,
            },
            Expression::Or(first, second) => match self.value(first)? {
                value if value.is_true() => value,
                _ => self.value(second)?,
            },
            Expression::Binary(operator, first, second) => {
                let first = self.value(first)?;
                let second = self.value(second)?;
                self.binary(*operator, &first, &second)?
            }
            Expression::List(values) => {
                let mut list = Vec::with_capacity(values.len());
                for value in values {
                    list.push(self.value(value)?);
                }
                Value::list(list)?
            }
            Expression::Call(function, arguments, line) => {
                let mut values = Vec::with_capacity(arguments.len());
                for argument in arguments {
                    values.push(self.value(argument)?);
                }
                self.function(*function, &values, *line)?
            }
        })
    }

    fn binary(
        &mut self,
        operator: Operator,
        first: &Value,
        second: &Value,
    ) -> Result<Value, Trouble> {
        if let (Value::Text(first), Value::Text(second)) = (first, second) {
            self.budget().weigh(first.len().min(second.len()))?;
        }
        use Operator::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, Unequal};
        Ok(match operator {
            Equal => Value::Bool(first.is(second)),
            Unequal => Value::Bool(!first.is(second)),
            Less => Value::Bool(is_less(first, second, false)?),
            LessOrEqual => Value::Bool(is_less(first, second, true)?),
            Greater => Value::Bool(is_less(second, first, false)?),
            GreaterOrEqual => Value::Bool(is_less(second, first, true)?),
            Operator::Join => self.join(first, second)?,
            _ => {
                let mut number = |value: &Value| -> Result<f64, Trouble> {
                    let number = self.number(value)?;
                    Ok(number.ok_or_else(|| unfit("perform arithmetic on", value))?)
                };
                let (first, second) = (number(first)?, number(second)?);
                Value::Number(match operator {
                    Operator::Add => first + second,
                    Operator::Subtract => first - second,
                    Operator::Multiply => first * second,
                    Operator::Divide => first / second,
                    Operator::Modulo => first - (first / second).floor() * second,
                    _ => first.powf(second),
                })
            }
        })
    }

    fn join(&mut self, first: &Value, second: &Value) -> Result<Value, Trouble> {
        let shown = |value: &Value| value.shown().ok_or_else(|| unfit("concatenate", value));
        let (first, second) = (shown(first)?, shown(second)?);
        self.budget().weigh(first.len() + second.len())?;
        Ok(Value::text(&[&*first, &*second].concat()))
    }
}

/// Whether a value is less than another one, or equal to it.
fn is_less(first: &Value, second: &Value, or_equal: bool) -> Result<bool, ReplyError> {
    match (first, second) {
        (Value::Number(first), Value::Number(second)) => {
            Ok(if or_equal { first <= second } else { first < second })
        }
        (Value::Text(first), Value::Text(second)) => {
            Ok(if or_equal { first <= second } else { first < second })
        }
        _ => Err(ReplyError::err(format!(
            "attempt to compare {} with {}",
            first.type_name(),
            second.type_name()
        ))),
    }
}

/// What `#` says.
fn length(value: &Value) -> Option<usize> {
    match value {
        Value::Text(text) => Some(text.len()),
        Value::List(list) => Some(match list.values.last() {
            Some(Value::Nil) => {
                list.values.iter().take_while(|value| !matches!(value, Value::Nil)).count()
            }
            _ => list.values.len(),
        }),
        Value::Status(_) | Value::Error(_) => Some(0),
        _ => None,
    }
}
