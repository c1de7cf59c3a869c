//! `strftime_now`, with the caller's time: core has no clock.

use minijinja::{Error, ErrorKind};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
/// The years 0001 to 9999, which Python's datetime spans.
const RANGE: std::ops::Range<i64> = -62_135_596_800..253_402_300_800;
const MAX_FORMAT_BYTES: usize = 1024;

struct Moment {
    year: i64,
    /// 1 to 12.
    month: i64,
    day: i64,
    /// 1 to 366.
    day_of_year: i64,
    /// 0 is Sunday.
    weekday: i64,
    hour: i64,
    minute: i64,
    second: i64,
}

/// `seconds` since 1970 in Python's `strftime` notation and the C locale.
pub(super) fn strftime(format: &str, seconds: i64) -> Result<String, Error> {
    if !RANGE.contains(&seconds) || format.len() > MAX_FORMAT_BYTES {
        return Err(Error::new(
            ErrorKind::InvalidOperation,
            "strftime_now: the time or the format is out of range",
        ));
    }
    let moment = Moment::new(seconds);
    let mut text = String::new();
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            text.push(c);
            continue;
        }
        let mut code = chars.next();
        let unpadded = code == Some('-');
        if unpadded {
            code = chars.next();
        }
        let field = code.and_then(|code| moment.field(code, seconds));
        let Some(field) = field else {
            let shown = code.map_or_else(String::new, String::from);
            return Err(Error::new(
                ErrorKind::InvalidOperation,
                format!("strftime_now: `%{shown}` is not supported"),
            ));
        };
        text.push_str(if unpadded { unpad(&field) } else { &field });
    }
    Ok(text)
}

fn unpad(field: &str) -> &str {
    let short = field.trim_start_matches(['0', ' ']);
    if short.is_empty() { "0" } else { short }
}

impl Moment {
    /// Days to a date of the proleptic Gregorian calendar, by 400-year eras that start in March.
    fn new(seconds: i64) -> Self {
        let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * from_march + 2) / 153;
        let day = from_march - (153 * month_from_march + 2) / 5 + 1;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let day_of_year =
            if month > 2 { from_march + 60 + i64::from(leap) } else { from_march - 305 };
        Self {
            year,
            month,
            day,
            day_of_year,
            weekday: (days + 4).rem_euclid(7),
            hour: rest / 3_600,
            minute: rest / 60 % 60,
            second: rest % 60,
        }
    }

    fn field(&self, code: char, seconds: i64) -> Option<String> {
        let twelve = (self.hour + 11) % 12 + 1;
        Some(match code {
            'a' => self.weekday_name()?[..3].to_owned(),
            'A' => self.weekday_name()?.to_owned(),
            'b' | 'h' => self.month_name()?[..3].to_owned(),
            'B' => self.month_name()?.to_owned(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'm' => format!("{:02}", self.month),
            'y' => format!("{:02}", self.year % 100),
            'Y' => self.year.to_string(),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{twelve:02}"),
            'M' => format!("{:02}", self.minute),
            'S' => format!("{:02}", self.second),
            'f' => "000000".to_owned(),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'j' => format!("{:03}", self.day_of_year),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'F' => strftime("%Y-%m-%d", seconds).ok()?,
            'T' | 'X' => strftime("%H:%M:%S", seconds).ok()?,
            'R' => strftime("%H:%M", seconds).ok()?,
            'D' | 'x' => strftime("%m/%d/%y", seconds).ok()?,
            'c' => strftime("%a %b %e %H:%M:%S %Y", seconds).ok()?,
            's' => seconds.to_string(),
            'z' | 'Z' => String::new(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }

    fn weekday_name(&self) -> Option<&'static str> {
        DAYS.get(usize::try_from(self.weekday).ok()?).copied()
    }

    fn month_name(&self) -> Option<&'static str> {
        MONTHS.get(usize::try_from(self.month - 1).ok()?).copied()
    }
}
