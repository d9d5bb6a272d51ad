//! The program on a SQLite file: no server, several processes.

mod commands;
mod demo;
mod operators;
mod processes;
mod support;
