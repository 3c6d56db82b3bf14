package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.Date;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Time;
import java.sql.Timestamp;
import java.util.ArrayList;
import java.util.List;
import java.util.TimeZone;
import org.junit.jupiter.api.AfterAll;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeAll;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

/** Values bound to parameters arrive as they are. The driver binds each in the type that the server announces. */
class ParameterTest {
  private static TimeZone zone;
  private Connection connection;
  private String table;

  @BeforeAll
  static void readTimesAsTheyAre() {
    zone = TimeZone.getDefault();
    TimeZone.setDefault(TimeZone.getTimeZone("UTC"));
  }

  @AfterAll
  static void goBack() {
    TimeZone.setDefault(zone);
  }

  @BeforeEach
  void createTable() throws SQLException {
    connection = Database.connect();
    table = Database.newTable();
    Database.execute(
        connection,
        "CREATE TABLE " + table + " (i INT, d DECIMAL(10, 2), a DATE, t TIMESTAMP(3), s TIMESTAMP(0), u TIMESTAMP(6),"
            + " n TIMESTAMP, z TIMESTAMP WITH TIME ZONE, c TIME, b VARBINARY)");
  }

  @AfterEach
  void close() throws SQLException {
    Database.execute(connection, "DROP TABLE IF EXISTS " + table);
    connection.close();
  }

  private interface Binder {
    void bind(PreparedStatement statement) throws SQLException;
  }

  private List<String> rows(String sql, Binder binder) throws SQLException {
    List<String> found = new ArrayList<>();
    try (PreparedStatement statement = connection.prepareStatement(sql)) {
      binder.bind(statement);
      try (ResultSet rows = statement.executeQuery()) {
        while (rows.next()) {
          found.add(rows.getString(1));
        }
      }
    }
    return found;
  }

  @Test
  void timesKeepTheirMoment() throws SQLException {
    Timestamp moment = Timestamp.valueOf("2024-01-02 12:34:56");
    try (PreparedStatement statement =
        connection.prepareStatement("INSERT INTO " + table + " (i, s, t, u, n, c, a) VALUES (?, ?, ?, ?, ?, ?, ?)")) {
      statement.setInt(1, 1);
      for (int column = 2; column <= 5; column++) {
        statement.setTimestamp(column, moment);
      }
      statement.setTime(6, Time.valueOf("12:34:56"));
      statement.setDate(7, Date.valueOf("2024-01-02"));
      assertEquals(1, statement.executeUpdate());
    }
    String texts = "SELECT concat_ws('|', CAST(s AS TIMESTAMP(0)), CAST(t AS TIMESTAMP(0)), CAST(u AS TIMESTAMP(0)),"
        + " CAST(n AS TIMESTAMP(0)), c, a) FROM " + table;
    String time = "2024-01-02T12:34:56";
    assertEquals(
        List.of(String.join("|", time, time, time, time, "12:34:56", "2024-01-02")), rows(texts, statement -> {}));
    for (String column : List.of("s", "t", "u", "n")) {
      String sql = "SELECT i FROM " + table + " WHERE " + column + " = ?";
      assertEquals(List.of("1"), rows(sql, statement -> statement.setTimestamp(1, moment)), column);
    }
    assertEquals(
        List.of("1"),
        rows("SELECT i FROM " + table + " WHERE c = ?", statement -> statement.setTime(1, Time.valueOf("12:34:56"))));
  }

  @Test
  void whatDoesNotFitIsRefused() throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement("INSERT INTO " + table + " (s) VALUES (?)")) {
      statement.setTimestamp(1, Timestamp.valueOf("2024-01-02 12:34:56.789"));
      SQLException error = assertThrows(SQLException.class, statement::executeUpdate);
      assertTrue(error.getMessage().contains("'s'"), error.getMessage());
    }
  }

  @Test
  void numbersAreComparedAndStored() throws SQLException {
    Database.execute(connection, "INSERT INTO " + table + " (i, d) VALUES (1, 1.25), (2, 2.50), (3, 3.75)");
    String by = "SELECT i FROM " + table + " WHERE %s ORDER BY i";
    assertEquals(List.of("2"), rows(String.format(by, "i = ?"), statement -> statement.setInt(1, 2)));
    assertEquals(List.of("1", "3"), rows(String.format(by, "i IN (?, ?)"), statement -> {
      statement.setLong(1, 1);
      statement.setInt(2, 3);
    }));
    assertEquals(
        List.of("2"), rows(String.format(by, "d = ?"), statement -> statement.setBigDecimal(1, new BigDecimal("2.50"))));
    assertEquals(List.of("2", "3"), rows(String.format(by, "i BETWEEN ? AND ?"), statement -> {
      statement.setInt(1, 2);
      statement.setInt(2, 9);
    }));
  }

  @Test
  void bytesAreStored() throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement("INSERT INTO " + table + " (b) VALUES (?)")) {
      statement.setBytes(1, new byte[] {0, -1});
      assertEquals(1, statement.executeUpdate());
    }
    assertEquals(List.of("00ff"), rows("SELECT encode(b, 'hex') FROM " + table, statement -> {}));
  }

  /**
   * Of prepared statements: driver 18.3.0 adds the columns of a plain Statement to themselves unless a row arrives
   * (arrow-java issue 44), whatever a server sends.
   */
  @Test
  void anEmptyResultHasItsColumnsOnce() throws SQLException {
    try (PreparedStatement statement = connection.prepareStatement("SELECT i, d FROM " + table + " WHERE i = ?")) {
      statement.setInt(1, 9);
      try (ResultSet rows = statement.executeQuery()) {
        assertEquals(2, rows.getMetaData().getColumnCount());
        assertFalse(rows.next());
        assertEquals(2, rows.getMetaData().getColumnCount());
      }
    }
  }
}
