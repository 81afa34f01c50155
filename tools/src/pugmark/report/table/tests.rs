use super::*;

fn text(report: &FunctionReport) -> String {
    let mut out = vec![];
    report.text(Digits::PLAIN, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn csv(report: &FunctionReport) -> String {
    let mut out = vec![];
    report.csv(&mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn row(numbers: [u64; 3], percent: f64, names: &[(&'static str, &str)]) -> Row {
    let [instructions, branches, calls] = numbers;
    Row {
        counts: Counts { instructions, branches, calls, ..Counts::default() },
        percent,
        names: names.iter().map(|(column, name)| (*column, (*name).into())).collect(),
        ..Row::default()
    }
}

fn report() -> FunctionReport {
    FunctionReport {
        instructions: 3,
        branches: 7,
        errors: 6,
        rows: vec![
            row(
                [2, 3, 4],
                200.0 / 3.0,
                &[("thread", "one"), ("object", "/x \"y\""), ("function", "f<a, b>")],
            ),
            row([1, 0, 5], 100.0 / 3.0, &[("thread", "one"), ("object", "/z"), ("function", "g")]),
        ],
        columns: ReportColumns { names: vec!["thread", "object", "function"], ..ReportColumns::default() },
        ..FunctionReport::default()
    }
}

#[test]
fn a_table_is_for_people_or_with_commas() {
    assert_eq!(
        text(&report()),
        "percent    instructions      branches       calls\n  66.67               2             3           4  \
         one  /x \"y\"  f<a, b>\n  33.33               1             0           5  one  /z  g\n\
         in all: 3 instructions, 7 branches, 6 errors\n"
    );
    assert_eq!(
        csv(&report()),
        "percent,instructions,branches,calls,thread,object,function\n\
         66.6667,2,3,4,\"one\",\"/x \"\"y\"\"\",\"f<a, b>\"\n33.3333,1,0,5,\"one\",\"/z\",\"g\"\n"
    );
    // The columns are the same without rows.
    let mut report = report();
    report.rows.clear();
    assert_eq!(csv(&report), "percent,instructions,branches,calls,thread,object,function\n");
}

#[test]
fn what_was_asked_for_has_columns_of_its_own_beside_what_it_is_like() {
    let mut report = report();
    report.rows.truncate(1);
    let first = &mut report.rows[0];
    first.names = [("line", "/a.c:4".into())].into();
    first.function_of_line = Some("work".into());
    first.percent_with_children = Some(100.0);
    first.counts.instructions_with_children = Some(3);
    (first.counts.time, first.counts.time_with_children) = (Some(50), Some(80));
    report.columns = ReportColumns {
        children: true,
        time: Some(Unit::Nanoseconds),
        names: vec!["line"],
        functions_of_lines: true,
    };
    (report.time, report.time_unit, report.selected_instructions) = (Some(90), Some("ns"), Some(2));
    assert_eq!(
        text(&report),
        "percent  with children    instructions   with children      branches       calls       \
         time (ns)   with children\n  \
         66.67         100.00               2               3             3           4              \
         50              80  \
         /a.c:4  work\n\
         selected: 2 instructions (66.67 %)\n\
         in all: 3 instructions, 7 branches, 6 errors, 90 ns\n"
    );
    assert_eq!(
        csv(&report),
        "percent,percent_with_children,instructions,instructions_with_children,branches,calls,time,time_with_children,\
         line,function\n66.6667,100.0000,2,3,3,4,50,80,\"/a.c:4\",\"work\"\n"
    );
    let json = serde_json::to_value(&report).unwrap();
    assert_eq!((&json["rows"][0]["function"], &json["time_unit"]), (&"work".into(), &"ns".into()));
    (report.columns.children, report.columns.time) = (false, Some(Unit::Ticks));
    assert!(text(&report).starts_with("percent    instructions      branches       calls    time (ticks)\n"));
}
