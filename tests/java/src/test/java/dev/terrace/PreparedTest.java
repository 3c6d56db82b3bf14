package dev.terrace;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.math.BigDecimal;
import java.sql.Connection;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Types;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;

class PreparedTest {
  private Connection connection;
  private String table;

  @BeforeEach
  void createTable() throws SQLException {
    connection = Database.connect();
    table = Database.newTable();
    Database.execute(connection, "CREATE TABLE " + table + " (id BIGINT, name VARCHAR, price DECIMAL(10, 2))");
  }

  @AfterEach
  void close() throws SQLException {
    Database.execute(connection, "DROP TABLE IF EXISTS " + table);
    connection.close();
  }

  @Test
  void aQueryIsRunWithDifferentParameters() throws SQLException {
    Database.execute(connection, "INSERT INTO " + table + " VALUES (1, 'one', 1.5), (2, 'two', 2.5), (3, NULL, 3.5)");
    try (PreparedStatement statement =
        connection.prepareStatement("SELECT name FROM " + table + " WHERE id = ?")) {
      for (long id = 1; id <= 3; id++) {
        statement.setLong(1, id);
        try (ResultSet rows = statement.executeQuery()) {
          assertTrue(rows.next());
          assertEquals(id == 1 ? "one" : id == 2 ? "two" : null, rows.getString(1));
          assertFalse(rows.next());
        }
      }
    }
  }

  @Test
  void anUpdateReportsItsRows() throws SQLException {
    try (PreparedStatement statement =
        connection.prepareStatement("INSERT INTO " + table + " VALUES (?, ?, ?)")) {
      assertEquals(3, statement.getParameterMetaData().getParameterCount());
      statement.setLong(1, 7);
      statement.setNull(2, Types.VARCHAR);
      statement.setBigDecimal(3, new BigDecimal("12.34"));
      assertEquals(1, statement.executeUpdate());
    }
    try (PreparedStatement statement = connection.prepareStatement("SELECT id, name, price FROM " + table);
        ResultSet rows = statement.executeQuery()) {
      assertTrue(rows.next());
      assertEquals(7, rows.getLong(1));
      assertNull(rows.getString(2));
      assertEquals(new BigDecimal("12.34"), rows.getBigDecimal(3));
      assertFalse(rows.next());
    }
  }

  @Test
  void aBatchInsertsEveryRowOnce() throws SQLException {
    try (PreparedStatement statement =
        connection.prepareStatement("INSERT INTO " + table + " (id, name) VALUES (?, ?)")) {
      for (long id = 1; id <= 100; id++) {
        statement.setLong(1, id);
        statement.setString(2, "row " + id);
        statement.addBatch();
      }
      int[] counts = statement.executeBatch();
      assertTrue(counts.length == 1 || counts.length == 100, "counts: " + counts.length);
    }
    try (PreparedStatement statement =
            connection.prepareStatement("SELECT count(*), count(DISTINCT name), sum(id) FROM " + table);
        ResultSet rows = statement.executeQuery()) {
      assertTrue(rows.next());
      assertArrayEquals(
          new long[] {100, 100, 5050}, new long[] {rows.getLong(1), rows.getLong(2), rows.getLong(3)});
    }
  }

  @Test
  void manyStatementsArePreparedAndClosed() throws SQLException {
    for (int i = 0; i < 1200; i++) {
      try (PreparedStatement statement = connection.prepareStatement("SELECT " + i)) {
        assertEquals(1, statement.getMetaData().getColumnCount());
      }
    }
  }
}
