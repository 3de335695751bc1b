//! Rendering shared by GPU dialects: bodies of a launch, thread indices, folds over lanes.
//!
//! Declarations, conversions and memory accesses are left to the language.

use crate::names::{Names, unprintable};
use gristmill_compiler::lower::{Code, Statement, ThreadIndex};
use gristmill_uop::Id;
use std::fmt::Write;

/// Text of a kernel during rendering.
#[derive(Default)]
pub struct SimtText<'a> {
    pub out: String,
    /// Thread indices of the open nest.
    pub threads: &'a [ThreadIndex],
}

/// Writer of a GPU language.
pub trait Simt<'a> {
    /// Suffix of unsigned literals.
    const UNSIGNED: &'static str;

    /// Returns the text written so far.
    fn text(&mut self) -> &mut SimtText<'a>;
    /// Returns the names of values.
    fn names(&self) -> &Names<'a>;
    /// Returns the type of a value.
    fn type_of(&self, id: Id) -> String;
    /// Renders an index expression inline.
    fn index(&self, id: Id) -> String;
    /// Converts a value to another type.
    fn converted(&self, t: &str, value: &str) -> String;
    /// Declares the index of a range with a type.
    fn range(&self, name: &str, t: &str, value: &str) -> String;
    /// Declares the index of a range that is spread over threads.
    fn range_of_threads(&self, name: &str, t: &str, value: &str) -> String {
        self.range(name, t, value)
    }
    /// Renders an unsigned quotient, of which further quotients and remainders are taken.
    fn quotient(&self, of: &str, by: &str) -> String;
    /// Renders the workgroup's unsigned index, counted from the first workgroup of `body`.
    fn workgroup(&self, body: usize) -> String;
    /// Renders the beginning of a body with `count` workgroups, and of the branch that runs it.
    fn head(&self, body: usize, count: Id) -> String;
    /// Renders the end of the branch and of the body.
    fn tail(&self, body: usize) -> String;
    /// Renders the statement that ends a workgroup.
    fn early_return(&self) -> String;
    /// Writes one statement, with the nested ones that follow separately.
    fn statement(&mut self, s: &'a Statement);
    fn statements(&mut self, all: &'a [Statement]) {
        all.iter().for_each(|s| self.statement(s));
    }

    fn line(&mut self, text: std::fmt::Arguments) {
        let out = &mut self.text().out;
        let _ = out.write_fmt(text);
        out.push('\n');
    }
    /// Writes a body: the indices of its workgroup, then its statements.
    fn body(&mut self, number: usize, code: &'a Code) {
        let head = self.head(number, self.names().signature.groups[number]);
        self.line(format_args!("{head}"));
        let mut rest = self.workgroup(number);
        for (i, &r) in code.globals.iter().enumerate().rev() {
            let (t, name) = (self.type_of(r), self.names().name(r));
            let mut value = rest.clone();
            if i > 0 {
                let bound = self.converted("u32", &self.index(self.names().g[r].src[0]));
                value = format!("{rest} % {bound}");
                rest = self.quotient(&rest, &bound);
            }
            let index = self.range(&name, &t, &value);
            self.line(format_args!("{index}"));
        }
        if let Some(skip) = code.skip {
            let (skip, leave) = (self.index(skip), self.early_return());
            self.line(format_args!("if ({skip}) {{ {leave} }}"));
        }
        self.statements(&code.statements);
        let tail = self.tail(number);
        self.line(format_args!("{tail}"));
    }
    /// Writes a block statement: a nest with its thread indices, a condition, or an end.
    ///
    /// Returns false for any other statement.
    fn block(&mut self, s: &'a Statement) -> bool {
        match s {
            Statement::End => self.line(format_args!("}}")),
            Statement::Unless(condition) => {
                let condition = self.index(*condition);
                self.line(format_args!("if (!({condition})) {{"));
            }
            Statement::Nest { threads, .. } | Statement::Threads(threads) => {
                if s.opens() {
                    self.line(format_args!("{{"));
                }
                self.text().threads = threads;
                for of in threads {
                    let part = |sign: &str, by: Option<i64>| {
                        by.map_or(String::new(), |by| {
                            format!(" {sign} {by}{}", Self::UNSIGNED)
                        })
                    };
                    let value = format!("thread{}{}", part("/", of.divide), part("%", of.modulo));
                    let (t, name) = (self.type_of(of.range), self.names().name(of.range));
                    let index = self.range_of_threads(&name, &t, &value);
                    self.line(format_args!("{index}"));
                }
            }
            _ => return false,
        }
        true
    }
    /// Returns the number of lanes of a fold and the distance in threads between them.
    fn lanes(&mut self, fold: Id) -> [i64; 2] {
        let range = self.names().g[fold].src[1];
        let stride = self
            .text()
            .threads
            .iter()
            .find(|t| t.range == range)
            .map(ThreadIndex::stride);
        let g = self.names().g;
        match (g.int_value(g[range].src[0]), stride) {
            (Some(lanes), Some(stride)) => [lanes, stride],
            _ => unprintable(g, fold),
        }
    }
}
