package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.ResultSet;
import java.sql.ResultSetMetaData;
import java.sql.SQLException;
import java.sql.Statement;
import java.sql.Types;
import java.util.Properties;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class QueryTest {
  private Connection connection;
  private String table;

  @BeforeEach
  void connect() throws SQLException {
    connection = Database.connect();
    table = Database.newTable();
  }

  @AfterEach
  void close() throws SQLException {
    Database.execute(connection, "DROP TABLE IF EXISTS " + table);
    connection.close();
  }

  @Test
  void valuesOfTheUsualTypes() throws SQLException {
    String sql =
        "SELECT 1 AS i, 1.5 AS f, 'text' AS s, true AS b, DATE '2024-02-29' AS d,"
            + " TIMESTAMP '2024-02-29T12:34:56' AS t, CAST(12.34 AS DECIMAL(10, 2)) AS n, CAST(NULL AS VARCHAR) AS z";
    try (Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery(sql)) {
      assertTrue(rows.next());
      assertEquals(1, rows.getInt("i"));
      assertEquals(1.5, rows.getDouble("f"));
      assertEquals("text", rows.getString("s"));
      assertTrue(rows.getBoolean("b"));
      assertEquals("2024-02-29", rows.getDate("d").toString());
      assertTrue(rows.getTimestamp("t").toString().startsWith("2024-02-29 12:34:56"));
      assertEquals(new BigDecimal("12.34"), rows.getBigDecimal("n"));
      assertNull(rows.getString("z"));
      assertFalse(rows.next());
      ResultSetMetaData metadata = rows.getMetaData();
      assertEquals(8, metadata.getColumnCount());
      assertEquals(Types.VARCHAR, metadata.getColumnType(3));
      assertEquals("VARCHAR", metadata.getColumnTypeName(3));
    }
  }

  @Test
  void changesReportTheirRowsAndHappenOnce() throws SQLException {
    try (Statement statement = connection.createStatement()) {
      assertFalse(statement.execute("CREATE TABLE " + table + " (id BIGINT, name VARCHAR)"));
      assertEquals(2, statement.executeUpdate("INSERT INTO " + table + " VALUES (1, 'a'), (2, NULL)"));
      assertTrue(statement.execute("SELECT id, name FROM " + table + " ORDER BY id"));
      try (ResultSet rows = statement.getResultSet()) {
        assertTrue(rows.next());
        assertEquals("a", rows.getString(2));
        assertTrue(rows.next());
        assertNull(rows.getString(2));
        assertFalse(rows.next());
      }
    }
  }

  @Test
  void nestedArraysAreRead() throws SQLException {
    try (Statement statement = connection.createStatement();
        ResultSet rows = statement.executeQuery("SELECT make_array(make_array(1, 2), make_array(3)) AS a")) {
      assertTrue(rows.next());
      Object[] outer = (Object[]) rows.getArray(1).getArray();
      assertEquals(2, outer.length);
    }
  }

  @Test
  void aLargeResultArrivesWhole() throws SQLException {
    try (Statement statement = connection.createStatement();
        ResultSet rows =
            statement.executeQuery(
                "SELECT value AS n, concat('row number ', value) AS s FROM generate_series(1, 300000)")) {
      long sum = 0;
      int count = 0;
      while (rows.next()) {
        sum += rows.getLong(1);
        count++;
      }
      assertEquals(300_000, count);
      assertEquals(300_000L * 300_001 / 2, sum);
    }
  }

  @Test
  void errorsSayWhatIsWrongAndTheConnectionGoesOn() throws SQLException {
    try (Statement statement = connection.createStatement()) {
      SQLException error =
          assertThrows(SQLException.class, () -> statement.executeQuery("SELECT * FROM no_such_table"));
      assertTrue(error.getMessage().contains("no_such_table"), error.getMessage());
      try (ResultSet rows = statement.executeQuery("SELECT 1")) {
        assertTrue(rows.next());
      }
    }
  }

  @Test
  void unknownUrlParametersOfAnySizeAreHarmless() throws SQLException {
    Properties properties = new Properties();
    properties.setProperty("some-unknown-parameter", "x".repeat(9000));
    try (Connection other = Database.connect(properties);
        Statement statement = other.createStatement();
        ResultSet rows = statement.executeQuery("SELECT 1")) {
      assertTrue(rows.next());
    }
  }
}
